"""Describe a run."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping


class Between(enum.StrEnum):
    """The protection of two requests that change the same counter."""

    NOTHING = "none"
    TRANSACTION = "transaction"
    LOCK = "lock"
    #: memcached is killed when a third of the requests are done.
    LOCK_WITHOUT_MEMCACHED = "lock-outage"

    @property
    def way(self) -> str:
        """Return the endpoint of the bench."""
        return "lock" if self is Between.LOCK_WITHOUT_MEMCACHED else self.value


#: The concurrency modes of the emulator.
MODES = ("pessimistic", "optimistic", "optimistic-with-entity-groups")


class PlanError(ValueError):
    """A plan that cannot be run."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One run.

    Attributes:
        between: the protection.
        mode: the concurrency mode of the emulator.
        clients: the number of concurrent clients.
        requests: the number of requests that each client sends, one after the other.
        hold_ms: the time between read and write, in milliseconds.
        batch_percent: the percentage of clients with batch priority.

    Raises:
        PlanError: a value is out of range.
    """

    between: Between
    mode: str = MODES[0]
    clients: int = 8
    requests: int = 10
    hold_ms: int = 20
    batch_percent: int = 25

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PlanError(f"mode is {self.mode!r}; it is one of: {', '.join(MODES)}")
        for name, least, most in (
            ("clients", 1, 32),
            ("requests", 1, 200),
            ("hold_ms", 0, 500),
            ("batch_percent", 0, 100),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise PlanError(f"{name} is {value!r}; it is a whole number from {least} to {most}")

    @property
    def in_all(self) -> int:
        """Return the number of all requests."""
        return self.clients * self.requests

    @property
    def batch_clients(self) -> int:
        """Return the number of batch clients. They are the last ones."""
        return round(self.clients * self.batch_percent / 100)

    @property
    def title(self) -> str:
        """Return a title for people."""
        titles = {
            Between.NOTHING: "no protection",
            Between.TRANSACTION: f"transactions, {self.mode}",
            Between.LOCK: "user lock",
            Between.LOCK_WITHOUT_MEMCACHED: "user lock, memcached killed",
        }
        return titles[self.between]

    @property
    def options(self) -> list[str]:
        """Return the options of `python -m sample_app lab` for this plan."""
        return [
            f"--{field.name.replace('_', '-')}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
        ]

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Plan:
        """Return a plan from the texts of a form or command line. Missing values have defaults.

        Raises:
            PlanError: a value is not valid.
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
                        f"between is {text!r}; it is one of: {', '.join(Between)}"
                    ) from None
            elif field.name == "mode":
                values["mode"] = text
            else:
                if not text.isascii() or not text.isdecimal():
                    raise PlanError(f"{field.name} is {text!r}; it is a whole number")
                values[field.name] = int(text)
        values.setdefault("between", Between.LOCK)
        return cls(**values)  # type: ignore[arg-type]  # checked above, and by the class
