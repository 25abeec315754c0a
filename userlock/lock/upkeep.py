"""Changes to the records of others: reservations of free locks, and compaction.

An offer. A free lock belongs to whoever is first in line; but it may be dead.
Those who wait find out with time (`userlock.lock.queue`). Who does not wait
cannot tell a lock that has lain free for a minute from one that was released
just now, and is about to be taken. So it lets the store measure the time:

    B (dead)    record                    C (tries once)         D (tries once)
                A +B =A ────────────────▶ free, and B is first
                C <A +B =C ?C ◀────────── swap, to live for 0.5 s
                                          refused
                lapsed ────────────────────────────────────────▶ B has had its time
                D <A ◀────────────────────────────────────────── swap, without B

Had B been alive, it would have taken the lock meanwhile, as any that is free.
An offer is made once: until it has lapsed nobody makes another, so callers who
come one after the other cannot keep B from it.

A long record. Who gives up waiting leaves two lines behind. Whoever joins a
record that is long, and mostly of such lines, writes it anew, where the store
can leave its time to live as it is. (Its holder finds it changed, as after any
other line, looks and goes on.)

No room. A store that has none for a line more leaves it out. Who cannot stand
in line then waits without a place; and that a holder is done is written with
the whole record, made short.
"""

from __future__ import annotations

from userlock.lock.lease import Claim
from userlock.lock.queue import PATIENCE_SECONDS
from userlock.lock.record import Record, done
from userlock.lock.store import LeaseStore, Stored, StoreUnavailable

#: How long a record may be before somebody who waits writes it anew, in bytes.
_LONG_BYTES = 32_000
#: How long a record lasts that is written anew with its holder's last word: who is next takes it
#: over long before.
_ENDED_SECONDS = 60.0
#: How often a record is written anew while others change it.
MOST_SWAPS = 50


def offer(store: LeaseStore, claim: Claim, record: Record, *, leaving: bool) -> bool:
    """Offer a lock that is free to those in line.

    Args:
        store: where the record is.
        claim: who does it.
        record: as it was just read; `record.can_be_offered_by(claim.token)`.
        leaving: the claim is given up, and in line no longer.

    Returns:
        Whether that was done; not if the record has changed meanwhile.
    """
    # One time more, for the last of them to notice that it is its turn.
    seconds = PATIENCE_SECONDS * (record.processes_besides(claim.token) + 1)
    # By another token: the claim's own may yet stand in line, or have the lock.
    by = claim.afresh()
    offered = record.offered_by(by.record, by.token, leaving=claim.token if leaving else "")
    return store.swap(claim.lock_id, record.stored.version, offered, seconds) is not None


def is_wordy(record: Record) -> bool:
    """Return whether a record is long, and at least half of it is of waiters that gave up."""
    length = len(record.stored.record)
    return length > _LONG_BYTES and not record.free and len(record.compacted()) <= length / 2


def shorten(store: LeaseStore, lock_id: str, record: Record) -> None:
    """Write a record anew without those who have given up waiting. Its lease ends as before.

    Args:
        store: where the record is. If it cannot leave times to live as they are, nothing is done.
        lock_id: whose record.
        record: as it was just read; not free.
    """
    store.rewrite(lock_id, record.stored.version, record.compacted())


def say_done(store: LeaseStore, lock_id: str, token: str, *, by: str = "") -> Record | None:
    """Say in a lock's record that its holder is done, and see how the record is then.

    Args:
        store: where the record is.
        lock_id: whose record.
        token: the holder's.
        by: who says so, if it is not the holder.

    Returns:
        The record, whosever it is by now; None if there is none.
    """
    for _ in range(MOST_SWAPS):
        stored = store.append(lock_id, done(token, by=by))
        if stored is None:
            return None
        record = Record(stored)
        if record.holder.token != token or record.released:
            return record
        short = record.compacted() + done(token, by=by)
        version = store.swap(lock_id, stored.version, short, _ENDED_SECONDS)
        if version is not None:
            return Record(Stored(short, version, stored.lapsed))
    raise StoreUnavailable("others changed the record all the time", sent=False)
