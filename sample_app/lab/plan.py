"""The plan of a run."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from sample_app.numbers import whole_number


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
        for name in _RANGES:
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
    def options(self) -> list[str]:
        """Return the same plan as options of `python -m sample_app lab`."""
        return [
            f"--{field.name.replace('_', '-')}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
        ]

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


def _number(name: str, value: object) -> int:
    least, most = _RANGES[name]
    found = whole_number(value, least=least, most=most)
    if found is None:
        shown = f"{value!s:.40}" if str(value).isdecimal() else f"{value!r:.40}"
        raise PlanError(f"{name} is {shown}; it is a whole number from {least} to {most}")
    return found
