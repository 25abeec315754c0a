"""The examples in docs/outbox.md."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.documents import Page

PAGE = Page("docs/outbox.md")
SHOP = PAGE.take("python", "send_receipt.stage")
REDRIVE = PAGE.take("python", "redrive_all")


@pytest.fixture
def shop(ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Provide the page's module, with a lock service as an app has one."""
    monkeypatch.setattr(ndb.Model, "_kind_map", {**ndb.Model._kind_map})
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


def test_dead_letters_are_redriven(
    shop: dict[str, Any],
    ndb_client: ndb.Client,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class BadAddress(Exception):
        """The page's own."""

    job = shop["send_receipt"]
    monkeypatch.setattr(job, "never_retry", (BadAddress,))
    errors = [BadAddress("nowhere")]
    function = job.function

    def fails_once(user_id: str, cents: int) -> None:
        if errors:
            raise errors.pop()
        function(user_id, cents)

    monkeypatch.setattr(job, "function", fails_once)
    (engine,) = shop["outbox"].engines
    with ndb_client.context():
        shop["buy"]("ann", 2000)
        assert engine.wait_until_idle(10)
        REDRIVE.run(shop)["redrive"]()
        assert engine.wait_until_idle(10)
    out = capsys.readouterr().out
    assert "shop.send_receipt('ann', cents=2000) 1 BadAddress" in out
    assert out.endswith("to ann: you have paid 2000 cents\n")
