"""Records as they grow, for tests."""

from __future__ import annotations

import dataclasses
import itertools

from userlock.lock.lease import Holder
from userlock.lock.record import Record, joining
from userlock.lock.store import Stored

_numbers = itertools.count(1)


def new_nonce() -> str:
    """What the tokens of one process begin with."""
    return f"{next(_numbers):024x}"


def a_holder(
    name: str = "",
    *,
    priority: str = "interactive",
    since: float = 0.0,
    process: str = "web/1",
    nonce: str = "",
) -> Holder:
    """Somebody, whose request says who it is; in a process of its own, if no nonce is given."""
    token = f"{nonce or new_nonce()}{next(_numbers):04x}"
    return Holder(token, priority, 1_700_000_000.0 + since, 60.0, process, name or token)


@dataclasses.dataclass
class Log:
    """A record as it grows."""

    holder: Holder
    stored: bytes = b""
    lapsed: bool = False

    def __post_init__(self) -> None:
        self.stored = self.stored or self.holder.encode()

    def add(self, *lines: bytes) -> Log:
        self.stored += b"".join(lines)
        return self

    def joined_by(self, *names: str, **options: object) -> Log:
        """These begin to wait, one after another."""
        for name in names:
            self.people[name] = a_holder(name, since=len(self.people), **options)  # type: ignore[arg-type]
            self.add(joining(self.people[name]))
        return self

    def __getitem__(self, name: str) -> Holder:
        return self.people[name]

    people: dict[str, Holder] = dataclasses.field(default_factory=dict)

    @property
    def record(self) -> Record:
        return Record(Stored(self.stored, object(), self.lapsed))

    @property
    def line(self) -> list[str]:
        """Who waits, by their names."""
        return names(self.record)


def names(record: Record) -> list[str]:
    return [waiter.request for waiter in record.waiters()]


def read_again(record: bytes) -> Record:
    return Record(Stored(record, object(), lapsed=False))


def offered_by(log: Log, holder: Holder) -> Log:
    """How the record goes on when somebody who does not wait has offered the free lock."""
    offered, _ = log.record.reserved_by(holder.encode(), holder.token, besides="", leaving=False)
    return Log(holder, offered, people=log.people)
