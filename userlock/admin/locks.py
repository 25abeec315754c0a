"""Locks of a store at one moment: holders and queues, as documents and as rows of tables."""

from __future__ import annotations

from typing import NamedTuple

import userlock.ids as ids
from userlock.admin.health import kind_of
from userlock.admin.rendering import Column, Facts, Moment
from userlock.errors import LockServiceUnavailable
from userlock.ids import quoted
from userlock.lock.lease import Holder
from userlock.lock.record import Record, Waiter
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.words import escaped

_MOST_LOCKS = 10_000
#: How many waiters of a lock are shown.
MOST_WAITERS = 100

FOREIGN = "something that userlock did not write"

#: The columns of a list of locks, and of the queue of one.
COLUMNS = (
    Column("lock", "Lock", "code"),
    Column("holder", "Holder", "code", 40),
    Column("held", "Held", "duration"),
    Column("waiting", "Waiting", "count"),
    Column("longest", "Longest", "duration"),
    Column("next", "Next", "code", 40),
)
QUEUE = (
    Column("number", "#", "count"),
    Column("process", "Process", "text", 40),
    Column("request", "Request", "code", 40),
    Column("priority", "Priority"),
    Column("waiting_seconds", "Waiting", "duration"),
)


class LockState(NamedTuple):
    """A lock, and its record if it has one."""

    name: str  # as `Listed.name`
    record: Record | None
    hashed: bool = False

    @property
    def shown(self) -> str:
        """Return the name for people."""
        return _shown(self.name) if self.hashed else ids.show(self.name)

    @property
    def held(self) -> bool:
        return self.record is not None and not self.record.free

    @property
    def contended(self) -> bool:
        return self.record is not None and not self.record.empty

    def longest_wait(self, wall: float) -> float:
        """Return the longest wait so far, in seconds; -1 if there are no waiters."""
        if self.record is None:
            return -1.0
        return max((wall - each.since for each in self.record.waiters()), default=-1.0)

    def row(self, wall: float) -> Facts:
        """Return the lock as a row of `COLUMNS`."""
        record = self.record
        waiters = [] if record is None else record.waiters()
        row: Facts = {"lock": self.shown, "holder": "(free)", "waiting": len(waiters)}
        if record is not None and not record.free:
            if is_foreign(record):
                row["holder"] = f"({FOREIGN})"
            else:
                row["holder"] = name_of(record.holder)
                row["held"] = held_seconds(record.holder, wall)
        if waiters:
            row["longest"], row["next"] = self.longest_wait(wall), name_of(waiters[0])
        return row


class Snapshot(NamedTuple):
    """The locks of a store at one moment, in seconds since 1970."""

    wall: float
    locks: list[LockState]
    #: Which locks are missing, and why; empty if none are.
    note: str

    @property
    def held(self) -> int:
        return sum(each.held for each in self.locks)

    def select(self, *, everything: bool) -> list[LockState]:
        """Return the locks to show, the longest wait first: contended ones, or all."""
        chosen = [each for each in self.locks if everything or each.contended]
        return sorted(chosen, key=lambda each: (-each.longest_wait(self.wall), each.name))


def take(service: LockService, lock_ids: list[str], wall: float) -> Snapshot:
    """Take a snapshot of the named locks; of all if none are named, which costs the store work.

    Raises:
        StoreUnavailable: the store did not answer.
    """
    if lock_ids:
        return _take_named(service, list(dict.fromkeys(lock_ids)), wall)
    kind = kind_of(service.store)
    if kind is None:
        return Snapshot(wall, [], "this kind of store does not list its locks")
    listed, note = kind.list_locks(service.store, _MOST_LOCKS)
    if len(listed) >= _MOST_LOCKS:
        note = note or f"there are more than {_MOST_LOCKS:,} locks; these are some of them"
    locks = [LockState(each.name, Record(each.stored), each.hashed) for each in listed]
    return Snapshot(wall, locks, note)


def _take_named(service: LockService, lock_ids: list[str], wall: float) -> Snapshot:
    """Take a snapshot without the locks of servers that are down; the note names those locks."""
    locks: list[LockState] = []
    missing: dict[str, LockServiceUnavailable] = {}
    for lock_id in lock_ids:
        try:
            locks.append(LockState(lock_id, service.look(lock_id)))
        except LockServiceUnavailable as error:
            missing[lock_id] = error
    if missing and not locks:
        first = next(iter(missing.values()))
        raise StoreUnavailable(first.reason) from first
    notes = [f"{quoted(lock_id)}: {each.reason}" for lock_id, each in missing.items()]
    return Snapshot(wall, locks, "; ".join(notes))


def is_foreign(record: Record) -> bool:
    """Return whether another program wrote the record. The lock counts as held."""
    return not record.holder.token


def held_seconds(holder: Holder, wall: float) -> float:
    """Return how long it has been held, as far as the clocks agree."""
    return max(wall - holder.since, 0.0)


def name_of(party: Holder | Waiter) -> str:
    """Return a holder or waiter in one phrase, harmless to a terminal."""
    return escaped(f"{party.process} {ids.show_request(party.request)}".strip()) or "?"


# --- as documents -------------------------------------------------------------------------------


def _shown(name: str) -> str:
    """Return the name of a lock that its store names by a hash."""
    return ids.show_digest(name.removeprefix("sha256:"))


def facts(lock_id: str, record: Record | None, wall: float, *, hashed: bool = False) -> Facts:
    """Return a lock as a document, with at most `MOST_WAITERS` of its waiters."""
    held = record is not None and not record.free
    waiters = [] if record is None else record.waiters()
    return {
        "lock_id": None if hashed else ids.exact(lock_id),
        "hash": _shown(lock_id) if hashed else None,
        "held": held,
        "holder": holder_facts(record, wall) if record is not None and held else None,
        "waiting": len(waiters),
        "waiters": [waiter_facts(each, wall) for each in waiters[:MOST_WAITERS]],
    }


def holder_facts(record: Record, wall: float) -> Facts:
    """Return the holder as a document."""
    holder = record.holder
    if is_foreign(record):
        return {"foreign": True, "process": FOREIGN}
    blocked = record.blocked_on
    return {
        "foreign": False,
        "process": holder.process,
        "request": ids.show_request(holder.request),
        "priority": holder.priority,
        "since": Moment(holder.since),
        "held_seconds": held_seconds(holder, wall),
        "lease_seconds": holder.lock_timeout,
        "waits_for": None if blocked is None else ids.exact(blocked.lock_id),
        "token": holder.token,
    }


def queue_rows(waiters: list[Waiter], wall: float) -> list[Facts]:
    """Return waiters as rows of `QUEUE`."""
    return [
        {
            **waiter_facts(each, wall),
            "number": number,
            "priority": f"{each.priority} (aged)" if each.aged else each.priority,
        }
        for number, each in enumerate(waiters[:MOST_WAITERS], 1)
    ]


def waiter_facts(waiter: Waiter, wall: float) -> Facts:
    """Return a waiter as a document."""
    return {
        "process": waiter.process,
        "request": ids.show_request(waiter.request),
        "priority": waiter.priority,
        "since": Moment(waiter.since),
        "waiting_seconds": max(wall - waiter.since, 0.0),
        "aged": waiter.aged,
    }
