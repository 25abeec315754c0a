"""docs/cookbook/payment.md: its code, and its table of crashes."""

from __future__ import annotations

from typing import Any

import pytest

import userlock_emulator
from tests.contract.cookbook.conftest import Cook, Died
from tests.documents import Page
from userlock.idempotency.flow import Flow

PAGE = Page("docs/cookbook/payment.md")
CODE = PAGE.take("python", "def charge_card")


@pytest.fixture
def names(cook: Cook) -> dict[str, Any]:
    return cook(CODE)


def buy(names: dict[str, Any]) -> Any:
    client = names["app"].test_client()
    headers = {"Idempotency-Key": "ann-monday-8d1f20c7a6"}
    return client.post("/users/ann/orders", json={"cents": 2000}, headers=headers)


def check(names: dict[str, Any], *, replayed: bool = False) -> None:
    """Send it again: one order with one charge."""
    answer = buy(names)
    assert answer.status_code == 201
    assert ("Idempotent-Replayed" in answer.headers) == replayed
    (order,) = names["Order"].query().fetch()
    assert names["CHARGES"] == {order.charge: 2000}
    assert answer.get_json() == {"order": order.key.id()}


@pytest.mark.parametrize("dropped", range(6))
def test_twice(names: dict[str, Any], datastore: userlock_emulator.Emulator, dropped: int) -> None:
    if dropped:
        datastore.faults.drop_reply(dropped)
    assert buy(names).status_code == 201
    check(names, replayed=True)


@pytest.mark.parametrize("line", ["2, before", "2", "3, before", "3", "4, before"])
def test_a_crash(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    def die(*args: Any, **kwargs: Any) -> Any:
        raise Died

    def charge_and_die(*args: Any) -> Any:
        charge(*args)
        raise Died

    charge = names["charge_card"]
    with monkeypatch.context() as patch:
        match line:
            case "2, before":
                patch.setattr(Flow, "phase", die)
            case "2":
                patch.setattr(Flow, "external", die)
            case "3, before":
                patch.setitem(names, "charge_card", die)
            case "3":
                patch.setitem(names, "charge_card", charge_and_die)
            case "4, before":
                patch.setattr(Flow, "last", die)
        with pytest.raises(Died):
            buy(names)
    assert len(names["CHARGES"]) == (line in ("3", "4, before"))
    check(names)
