"""The README's examples work as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import ndb

import emulator
import userlock
from emulator import memcache

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Run code as the README says: the emulator and a memcached are there."""
    with emulator.start() as datastore, memcache.start() as server:
        for name, value in datastore.env.items():
            monkeypatch.setenv(name, value)
        # ndb knows one class per kind in a process; the README's are its own.
        monkeypatch.setattr(ndb.Model, "_kind_map", {})

        def execute(code: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
            code = code.replace("127.0.0.1:11211", server.address)
            names = {"__name__": "points", "__file__": "/app/points.py"} if names is None else names
            exec(compile(code, "/app/points.py", "exec"), names)  # noqa: S102 (our own README)
            return names

        yield execute


def test_the_handler_works_when_pasted_into_a_file(run: Any) -> None:
    names = run(BLOCKS[0])
    client = names["app"].test_client()
    assert client.post("/users/ann/exercise-finished").get_json() == {"points": 5}
    assert client.post("/users/ann/exercise-finished").get_json() == {"points": 10}


def test_without_its_lock_it_fails_as_the_readme_shows(run: Any) -> None:
    names = run(BLOCKS[0])
    app = names["app"]
    app.testing = True
    app.test_client().post("/users/ann/exercise-finished")
    without = re.sub(r"^    with userlock.*\n((?:        .*\n)+)", _dedent, BLOCKS[0], flags=re.M)
    assert "global_lock" not in without
    app = run(without)["app"]
    app.testing = True
    with pytest.raises(userlock.PutWithoutLock) as caught:
        app.test_client().post("/users/ann/exercise-finished")
    shown = re.search(r"^    userlock\.errors\.(PutWithoutLock: .*?\n\n)", README, re.DOTALL | re.M)
    assert shown is not None
    expected = re.sub(r"^    ", "", shown[1], flags=re.MULTILINE).strip()
    assert f"PutWithoutLock: {caught.value}" == expected


def _dedent(match: re.Match[str]) -> str:
    return re.sub(r"^    ", "", match[1], flags=re.MULTILINE)


def test_the_other_snippets_work_too(run: Any) -> None:
    names = run(BLOCKS[0])
    names["ndb"] = ndb
    for block in BLOCKS[1:]:
        run(block, names)
    with ndb.Client().context(), userlock.scope(names["service"]):
        with userlock.global_lock("ann"):
            names["User"](id="ann", points=150).put()
        names["buy_certificate"]("ann")
        assert names["User"].get_by_id("ann", use_cache=False).points == 50
        assert names["VideoLog"].query().count() == 1


def test_it_names_the_two_commands() -> None:
    assert len(BLOCKS) == 3
    assert "make run" in README
    assert "make test" in README
