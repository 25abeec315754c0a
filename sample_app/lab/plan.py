"""The plans of runs: of a counter that many change, and of orders whose workers are killed."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from sample_app.numbers import whole_number
from sample_app.words import counted


class Between(enum.StrEnum):
    """The protection between two requests that change the same counter."""

    NOTHING = "none"
    TRANSACTION = "transaction"
    LOCK = "lock"
    #: memcached is killed before a third of the requests is done.
    LOCK_WITHOUT_MEMCACHED = "lock-outage"

    @property
    def way(self) -> str:
        """Return the way of the bench endpoint."""
        return "lock" if self is Between.LOCK_WITHOUT_MEMCACHED else self.value


#: The emulator's concurrency modes.
MODES = ("pessimistic", "optimistic", "optimistic-with-entity-groups")


#: The least and the most of each number.
_RANGES = {
    "clients": (1, 32),
    "requests": (1, 200),
    "hold_ms": (0, 500),
    "batch_percent": (0, 100),
    "orders": (1, 100),
    "kill_percent": (0, 100),
}


class PlanError(ValueError):
    """An invalid plan. The message names the error."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The plan of one run.

    Attributes:
        between: the protection.
        mode: the concurrency mode of the emulator.
        clients: number of concurrent clients; each sends one request after the other.
        requests: number of requests of each client.
        hold_ms: time between reading and writing, in milliseconds.
        batch_percent: percentage of clients that are batch work.

    Raises:
        PlanError: a value is invalid.
    """

    between: Between
    mode: str = MODES[0]
    clients: int = 8
    requests: int = 10
    hold_ms: int = 20
    batch_percent: int = 25

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PlanError(f"mode is {self.mode!r:.40}; it is one of: {', '.join(MODES)}")
        for name in ("clients", "requests", "hold_ms", "batch_percent"):
            _number(name, getattr(self, name))

    @property
    def in_all(self) -> int:
        """Return the total number of requests."""
        return self.clients * self.requests

    @property
    def batch_clients(self) -> int:
        """Return the number of clients that are batch work: the last ones."""
        return round(self.clients * self.batch_percent / 100)

    @property
    def title(self) -> str:
        """Return a readable name."""
        what = {
            Between.NOTHING: "no protection",
            Between.TRANSACTION: f"transactions, {self.mode}",
            Between.LOCK: "user lock",
            Between.LOCK_WITHOUT_MEMCACHED: "user lock, memcached killed during the run",
        }
        return what[self.between]

    @property
    def about(self) -> str:
        """Return its numbers in a few words."""
        clients, requests = counted(self.clients, "client"), counted(self.requests, "request")
        return f"{clients}, {requests} each, {self.hold_ms} ms"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Plan:
        """Parse a plan from a form or a command line. Missing values get their defaults.

        Raises:
            PlanError: a value is invalid.
        """
        values: dict[str, object] = {}
        for field in dataclasses.fields(cls):
            text = given.get(field.name)
            if text is None or text == "":
                continue
            if field.name == "between":
                try:
                    values["between"] = Between(text)
                except ValueError:
                    raise PlanError(
                        f"between is {text!r:.40}; it is one of: {', '.join(Between)}"
                    ) from None
            elif field.name == "mode":
                values["mode"] = text
            else:
                values[field.name] = _number(field.name, text)
        values.setdefault("between", Between.LOCK)
        return cls(**values)  # type: ignore[arg-type]  # checked above, and by the class


class Scenario(enum.StrEnum):
    """An order, and its effect in another service."""

    #: The order is stored, and the warehouse is told.
    ORDERS = "orders"
    #: The card is charged, and the order is stored.
    PAYMENTS = "payments"

    @property
    def ways(self) -> dict[str, str]:
        """Return the ways of the bench endpoint: one without the library's protection, one with."""
        ways = {
            Scenario.ORDERS: {"told": "stored, then told", "outbox": "stored with a job"},
            Scenario.PAYMENTS: {"charged": "charged, then stored", "once": "idempotent request"},
        }
        return ways[self]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CrashPlan:
    """The plan of one run with orders.

    Attributes:
        scenario: the order and its effect.
        orders: number of orders with each protection.
        clients: number of concurrent clients; each sends an order until it is confirmed.
        kill_percent: percentage of the orders whose first request kills its worker.

    Raises:
        PlanError: a value is invalid.
    """

    scenario: Scenario
    orders: int = 20
    clients: int = 4
    kill_percent: int = 25

    def __post_init__(self) -> None:
        for name in ("orders", "clients", "kill_percent"):
            _number(name, getattr(self, name))

    @property
    def in_all(self) -> int:
        """Return the number of orders, with and without protection."""
        return self.orders * len(self.scenario.ways)

    @property
    def title(self) -> str:
        """Return a readable name."""
        return {
            Scenario.ORDERS: "orders and the warehouse",
            Scenario.PAYMENTS: "orders and payments",
        }[self.scenario]

    @property
    def about(self) -> str:
        """Return its numbers in a few words."""
        return f"{counted(self.orders, 'order')}, {self.kill_percent} % killed"

    def kills(self, number: int) -> bool:
        """Return whether the order of this number kills its worker. They are spread evenly."""
        return (number + 1) * self.kill_percent // 100 > number * self.kill_percent // 100

    @classmethod
    def of(cls, given: Mapping[str, str]) -> CrashPlan:
        """Parse a plan from a form or a command line. Missing values get their defaults.

        Raises:
            PlanError: a value is invalid.
        """
        scenario = given.get("scenario") or Scenario.ORDERS
        if scenario not in list(Scenario):
            raise PlanError(f"scenario is {scenario!r:.40}; it is one of: {', '.join(Scenario)}")
        numbers = {
            name: _number(name, given[name])
            for name in ("orders", "clients", "kill_percent")
            if given.get(name)
        }
        return cls(scenario=Scenario(scenario), **numbers)


def stored_plan(given: Mapping[str, object]) -> Plan | CrashPlan:
    """Return a plan that `dataclasses.asdict` has written.

    Raises:
        PlanError: it is none.
    """
    text = {key: str(value) for key, value in given.items()}
    return CrashPlan.of(text) if "scenario" in text else Plan.of(text)


def with_each(plan: Plan) -> list[Plan]:
    """Return the plan with each protection."""
    return [dataclasses.replace(plan, between=between) for between in Between]


def options_of(plans: Sequence[Plan | CrashPlan]) -> list[str]:
    """Return plans that differ in their protection as options of `python -m sample_app lab`."""
    first = plans[0]
    rest = [field.name for field in dataclasses.fields(first) if field.name != "between"]
    return [
        *(f"--between={plan.between}" for plan in plans if isinstance(plan, Plan)),
        *(f"--{name.replace('_', '-')}={getattr(first, name)}" for name in rest),
    ]


def _number(name: str, value: object) -> int:
    least, most = _RANGES[name]
    found = whole_number(value, least=least, most=most)
    if found is None:
        shown = f"{value!s:.40}" if str(value).isdecimal() else f"{value!r:.40}"
        raise PlanError(f"{name} is {shown}; it is a whole number from {least} to {most}")
    return found
