"""Each order's facts, and the figures of them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sample_app.lab.plan import CrashPlan, Scenario
from sample_app.words import counted


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One order, after all was done.

    Attributes:
        killed: whether its worker was killed between the two halves.
        sent: number of requests until it was confirmed.
        confirmed: whether its client was told that it is placed.
        stored: whether the site has it.
        effects: how often the other service did its part: messages that it took, or charges.
    """

    killed: bool
    sent: int
    confirmed: bool
    stored: bool
    effects: int

    @property
    def wrong(self) -> bool:
        """Return whether order and effect do not belong to each other."""
        return self.effects != self.stored


def figures(orders: Sequence[Order], seconds: float) -> dict[str, Any]:
    """Return the figures of these orders."""
    return {
        "orders": len(orders),
        "killed": sum(order.killed for order in orders),
        "sent": sum(order.sent for order in orders),
        "confirmed": sum(order.confirmed for order in orders),
        "stored": sum(order.stored for order in orders),
        "effects": sum(order.effects for order in orders),
        "without_effect": sum(order.stored and not order.effects for order in orders),
        "repeated": sum(order.effects > 1 for order in orders),
        "without_order": sum(order.effects > 0 and not order.stored for order in orders),
        "seconds": seconds,
        "each": [dataclasses.asdict(order) for order in orders],
    }


def wrong(measured: Mapping[str, Any]) -> int:
    """Return the number of orders whose effect is missing, or is there more than once."""
    return sum(Order(**each).wrong for each in measured["each"])


def verdict(scenario: Scenario, measured: Mapping[str, Any]) -> str:
    """Return the result in one sentence, and the conditions in another."""
    missing, repeated, alone = (
        measured[key] for key in ("without_effect", "repeated", "without_order")
    )
    orders = counted(measured["orders"], "order")
    told = scenario is Scenario.ORDERS
    said = []
    if missing:
        never = "never reached the warehouse" if told else "never charged"
        said.append(f"{missing:,} of {orders} {_were(missing)} stored and {never}")
    if repeated:
        twice = "reached the warehouse twice" if told else f"{_were(repeated)} charged twice"
        said.append(f"{repeated:,} of {orders} {twice} or more often")
    if alone:
        said.append(f"{alone:,} of {orders} {_were(alone)} never stored, but had its effect")
    if not said:
        done = "reached the warehouse" if told else "charged"
        were = "" if told else "was " if measured["orders"] == 1 else "were "
        said.append(f"All {orders} {were}{done}, each once")
    first = "; ".join(said)
    unconfirmed = measured["orders"] - measured["confirmed"]
    others = f"{unconfirmed:,} unconfirmed; " if unconfirmed else ""
    return (
        f"{first}. {others}{counted(measured['killed'], 'worker')} killed, "
        f"{counted(measured['sent'], 'request')} sent."
    )


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def document(plan: CrashPlan, measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a run as JSON: the figures without the library's protection, and with it."""
    return {"plan": dataclasses.asdict(plan), "outcome": dict(measured)}
