"""A snapshot of the locks in a store, for operators. Costs the store some work."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, NamedTuple

from userlock.errors import LockServiceUnavailable
from userlock.lock.lease import Holder
from userlock.lock.record import Record, Waiter
from userlock.lock.service import LockService
from userlock.lock.store import Listed, ListingStopped, ListingStore, StoreUnavailable

_MOST_LOCKS = 10_000

FOREIGN = "something that userlock did not write"


def is_foreign(record: Record) -> bool:
    """Return whether another program wrote the record. The lock counts as held."""
    return not record.holder.token


def held_seconds(holder: Holder, wall: float) -> float:
    """For how long it has been held, as far as the clocks agree."""
    return max(wall - holder.since, 0.0)


def timestamp(wall: float) -> str | None:
    """Return a moment for programs: RFC 3339, in UTC."""
    try:
        moment = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Seen(NamedTuple):
    """A lock, and its record if it has one.

    Attributes:
        name: its id; where the store keeps only a hash of it, that.
        record: None when nobody has it, and nobody waits.
        hashed: the name is a hash.
    """

    name: str
    record: Record | None
    hashed: bool = False

    @property
    def held(self) -> bool:
        return self.record is not None and not self.record.free

    @property
    def contended(self) -> bool:
        return self.record is not None and not self.record.empty

    def longest(self, wall: float) -> float:
        """For how long whoever has waited longest has waited; -1 if nobody waits."""
        if self.record is None:
            return -1.0
        return max((wall - each.since for each in self.record.waiters()), default=-1.0)


class Sample(NamedTuple):
    """A snapshot of all locks.

    Attributes:
        wall: when, in seconds since 1970.
        locks: those that have a record, or that were asked for.
        note: what is missing, and why; empty if nothing is.
    """

    wall: float
    locks: list[Seen]
    note: str

    @property
    def held(self) -> int:
        return sum(each.held for each in self.locks)

    def interesting(self, *, everything: bool) -> list[Seen]:
        """Return those to show, whoever waits longest first."""
        chosen = [each for each in self.locks if everything or each.contended]
        return sorted(chosen, key=lambda each: (-each.longest(self.wall), each.name))


def take(service: LockService, lock_ids: list[str], wall: float) -> Sample:
    """Look at all locks, or at those that are named.

    Raises:
        StoreUnavailable: the store did not answer.
    """
    if lock_ids:
        return Sample(wall, list(_named(service, lock_ids)), "")
    store = service.store
    if not isinstance(store, ListingStore):
        return Sample(wall, [], "this kind of store does not list its locks")
    listed: list[Listed] = []
    note = ""
    try:
        listed.extend(store.lock_ids(_MOST_LOCKS))
        if len(listed) >= _MOST_LOCKS:
            note = f"there are more than {_MOST_LOCKS:,} locks; these are some of them"
    except ListingStopped as stopped:
        note = str(stopped)
    records = zip(listed, store.read_listed(listed), strict=True) if listed else ()
    return Sample(
        wall,
        [
            Seen(each.name, Record(stored), each.hashed)
            for each, stored in records
            if stored is not None
        ],
        note,
    )


def _named(service: LockService, lock_ids: list[str]) -> Iterator[Seen]:
    for lock_id in dict.fromkeys(lock_ids):
        try:
            yield Seen(lock_id, service.look(lock_id))
        except LockServiceUnavailable as error:
            raise StoreUnavailable(error.reason) from error


# --- as documents -------------------------------------------------------------------------------


def facts(
    lock_id: str, record: Record | None, wall: float, *, hashed: bool = False
) -> dict[str, Any]:
    """Return a lock as a document."""
    held = record is not None and not record.free
    document: dict[str, Any] = {
        "lock_id": None if hashed else lock_id,
        "hash": lock_id if hashed else None,
        "held": held,
        "holder": None,
        "waiters": [],
    }
    if record is None:
        return document
    if held:
        document["holder"] = holder_facts(record, wall)
    document["waiters"] = [waiter_facts(each, wall) for each in record.waiters()]
    return document


def holder_facts(record: Record, wall: float) -> dict[str, Any]:
    """Return the holder."""
    holder = record.holder
    if is_foreign(record):
        return {"foreign": True, "process": FOREIGN}
    blocked = record.blocked_on
    return {
        "foreign": False,
        "process": holder.process,
        "request": holder.request,
        "priority": holder.priority,
        "since": timestamp(holder.since),
        "held_seconds": held_seconds(holder, wall),
        "lease_seconds": holder.lock_timeout,
        "waits_for": None if blocked is None else blocked.lock_id,
        "token": holder.token,
    }


def waiter_facts(waiter: Waiter, wall: float) -> dict[str, Any]:
    """One who waits."""
    return {
        "process": waiter.process,
        "request": waiter.request,
        "priority": waiter.priority,
        "since": timestamp(waiter.since),
        "waiting_seconds": max(wall - waiter.since, 0.0),
        "aged": waiter.aged,
    }
