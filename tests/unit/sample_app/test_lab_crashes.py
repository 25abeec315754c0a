"""Test the figures and the verdict of the lab's orders. tests/system has whole runs."""

from __future__ import annotations

import pytest

from sample_app.lab.crashes.outcome import Order, figures, verdict, wrong
from sample_app.lab.plan import Scenario


def order(effects: int = 1, *, stored: bool = True, killed: bool = False) -> Order:
    return Order(killed=killed, sent=1, confirmed=stored, stored=stored, effects=effects)


def test_figures() -> None:
    found = figures([order(), order(0, killed=True), order(3), order(1, stored=False)], 2.0)
    counts = {"orders": 4, "killed": 1, "stored": 3, "confirmed": 3, "effects": 5}
    wrongs = {"without_effect": 1, "repeated": 1, "without_order": 1}
    assert counts | wrongs == {name: found[name] for name in counts | wrongs}
    assert wrong(found) == 3


ORDERS, PAYMENTS = Scenario.ORDERS, Scenario.PAYMENTS


@pytest.mark.parametrize(
    ("scenario", "orders", "words"),
    [
        (ORDERS, [order(), order(0)], "1 of 2 orders was stored and never reached the warehouse."),
        (ORDERS, [order(2)] * 3, "3 of 3 orders reached the warehouse twice or more often."),
        (PAYMENTS, [order()] * 2, "All 2 orders were charged, each once."),
        (PAYMENTS, [order(1, stored=False)], "1 of 1 order was never stored, but had its effect."),
        (PAYMENTS, [order(0, stored=False), order()], "1 unconfirmed"),
    ],
)
def test_the_verdict(scenario: Scenario, orders: list[Order], words: str) -> None:
    assert words in verdict(scenario, figures(orders, 1.0))
