"""The examples of jobs in docs/outbox.md."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.documents import Page
from userlock.outbox import Outbox
from userlock.testing import ManualClock

PAGE = Page("docs/outbox.md")
SHOP = PAGE.take("python", "send_receipt.stage")
CHARGE = PAGE.take("python", "RetryAfter(60)")
NIGHTLY = PAGE.take("python", "def read_file")


@pytest.fixture
def shop(ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Provide the page's module, with a lock service as an app has one."""
    monkeypatch.setitem(sys.modules, "shop", types.ModuleType("shop"))
    userlock.configure(service=userlock.LockService.from_url("memory:"))
    names = SHOP.run({"__name__": "shop"})
    yield names
    names["outbox"].close()


def test_a_job_runs_after_its_transaction(
    shop: dict[str, Any], ndb_client: ndb.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    with ndb_client.context():
        shop["buy"]("ann", 2000)
        assert shop["Account"].get_by_id("ann").cents == 2000
    (engine,) = shop["outbox"].engines
    assert engine.wait_until_idle(10)
    assert capsys.readouterr().out == "to ann: you have paid 2000 cents\n"


def test_a_file_is_read_twice(shop: dict[str, Any], ndb_client: ndb.Client, tmp_path: Path) -> None:
    """The first time up to its second line, whose job has run by then; the control is its row."""
    names = NIGHTLY.run(shop)
    (engine,) = shop["outbox"].engines
    file = tmp_path / "2026-11-27.csv"
    with ndb_client.context():
        for text in ("ann,500\nbob,700\n", "ann,500\nbob,700\ncem,900\n"):
            file.write_text(text)
            names["read_file"](str(file))
            assert engine.wait_until_idle(10)
        found = {each.key.id(): each.cents for each in shop["Account"].query()}
        assert found == {"ann": 500, "bob": 700, "cem": 900}
        ndb.delete_multi(names["Paid"].query().fetch(keys_only=True))
        names["read_file"](str(file))
        assert engine.wait_until_idle(10)
        assert shop["Account"].get_by_id("ann", use_cache=False).cents == 1000


def test_a_job_knows_itself(shop: dict[str, Any], ndb_client: ndb.Client) -> None:
    keys: list[str] = []

    class Provider:
        """Is busy at first."""

        def charge(self, cents: int, idempotency_key: str) -> bool:
            keys.append(idempotency_key)
            return len(keys) > 1

    outbox = Outbox("inline://?threads=0", client=ndb_client, clock=(clock := ManualClock()))
    names = CHARGE.run({"outbox": outbox, "provider": Provider(), "__name__": "shop"})
    with ndb_client.context():
        staged = names["charge"].stage_now("ann", 2000)
        outbox.run(staged.key)
        clock.advance(61)
        outbox.run(staged.key)
    assert keys == [staged.key, staged.key]
