"""Records as they grow, for tests."""

from __future__ import annotations

import dataclasses
import itertools

from tests.leases import as_stored
from userlock.lock.lease import Holder
from userlock.lock.record import Record, joining
from userlock.lock.store import Stored

_numbers = itertools.count(1)


def new_nonce() -> str:
    return f"{next(_numbers):024x}"


def a_holder(
    name: str = "",
    *,
    priority: str = "interactive",
    since: float = 0.0,
    process: str = "web/1",
    nonce: str = "",
) -> Holder:
    """Return a holder whose request is its name; in a process of its own, if no nonce is given."""
    token = f"{nonce or new_nonce()}{next(_numbers):04x}"
    return Holder(token, priority, 1_700_000_000.0 + since, 60.0, process, name or token)


@dataclasses.dataclass
class Log:
    holder: Holder
    stored: bytes = b""
    lapsed: bool = False

    def __post_init__(self) -> None:
        self.stored = self.stored or as_stored(self.holder)

    def add(self, *lines: bytes) -> Log:
        self.stored += b"".join(lines)
        return self

    def joined_by(self, *names: str, **options: object) -> Log:
        for name in names:
            self.members[name] = a_holder(name, since=len(self.members), **options)  # type: ignore[arg-type]
            self.add(joining(self.members[name]))
        return self

    def __getitem__(self, name: str) -> Holder:
        return self.members[name]

    members: dict[str, Holder] = dataclasses.field(default_factory=dict)

    @property
    def record(self) -> Record:
        return Record(Stored(self.stored, object(), self.lapsed))

    @property
    def queue(self) -> list[str]:
        return names(self.record)


def names(record: Record) -> list[str]:
    return [waiter.request for waiter in record.waiters()]


def read_again(record: bytes) -> Record:
    return Record(Stored(record, object(), lapsed=False))


def reserved_by(log: Log, holder: Holder) -> Log:
    """Return the record after a caller that does not wait has reserved the free lock."""
    reserved, _ = log.record.reserved_by(as_stored(holder), holder.token, besides="", leaving=False)
    return Log(holder, reserved, members=log.members)
