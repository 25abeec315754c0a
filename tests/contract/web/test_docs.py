"""docs/web.md: its example works as it stands, and its problem document is what clients get."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from emulator import memcache
from userlock.contrib.problems import problem_of

PAGE = (Path(__file__).parents[3] / "docs" / "web.md").read_text()


def test_the_example(ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.search(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert example is not None
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    names: dict[str, Any] = {"__name__": "wallets", "__file__": "/app/wallets.py"}
    with memcache.start() as server:
        code = example[1].replace("127.0.0.1:11211", server.address)
        exec(compile(code, "/app/wallets.py", "exec"), names)  # noqa: S102 (our own page)
        client = names["app"].test_client()
        assert client.post("/wallets/ann/points").get_json() == {"points": 5}
        assert client.post("/wallets/ann/points").get_json() == {"points": 10}


def test_the_problem_document() -> None:
    shown = re.search(r'^    (\{"title".*?\})\n\n', PAGE, re.DOTALL | re.MULTILINE)
    assert shown is not None
    error = userlock.LockTimeout(lock_id="ann", waited_seconds=5.0021, holder=None)
    assert json.loads(shown[1]) == json.loads(problem_of(error).body)
