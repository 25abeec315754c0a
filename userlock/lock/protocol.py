"""Leases on top of a store's register: taken, kept and given back, each by its owner alone.

Every change names the version of the record that it was decided on, or appends an entry that has a
meaning for its owner only. So nothing here can end or lengthen another owner's lease, whatever was
lost, late or restarted in between:

    we                        store                        next owner
    create ─────────────────▶ version 1
    (paused for longer than the lease)
                              lapsed
                              version 2 ◀───────────────── swap 1
    remove 1 ───────────────▶ refused: it is version 2
    append "= our token" ───▶ the record names the next owner: lost
                              (the entry has no meaning for them)

After an error it is not known whether a command was carried out; the record tells.
`StoreUnavailable` leaves this module only if the record could not be read either.

A reservation lets the store measure how long a free lock has been free. The
first waiter of a free lock may be dead, and a caller that does not wait cannot
tell a lock that was released a minute ago from one released just now:

    B (dead)    record                    C (tries once)         D (tries once)
                A +B =A ────────────────▶ free, and B is first
                C <A +B =C ?C ◀────────── swap, with 0.5 s to live
                                          refused
                lapsed ────────────────────────────────────────▶ B has had its time
                D <A ◀────────────────────────────────────────── swap, without B

If B is alive, it takes the lock meanwhile, as any free lock. Until a reservation has lapsed nobody
makes another, so callers that come one after the other cannot keep B from the lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

import userlock.lock.lease as leases
from userlock.clock import Clock
from userlock.ids import quoted
from userlock.lock.lease import Claim, Fenced, Granted, Held, Lease, Lost, Priority
from userlock.lock.record import CHANGE, Record, done, joining
from userlock.lock.store import LeaseStore, RecordBusy, Stored, StoreUnavailable

_Answer = TypeVar("_Answer")
_Args = TypeVarTuple("_Args")

#: How often a change is tried again while others change the record.
MOST_SWAPS = 50
#: How often a change for a fence is tried.
_MOST_CHANGES = 5
#: Time to live of a record that is replaced with its holder's last entry, in seconds. The next
#: waiter takes it over long before.
_ENDED_SECONDS = 60.0


class LeaseProtocol:
    """The leases in one store. Thread-safe. Raises `StoreUnavailable` as described above.

    Calls `release_later` with a lease that nobody wants any more, and that may yet be granted.
    """

    def __init__(
        self,
        store: LeaseStore,
        clock: Clock,
        release_later: Callable[[Lease], object] = lambda _: None,
    ) -> None:
        self.store = store
        self._clock = clock
        self.release_later = release_later

    # --- taking -----------------------------------------------------------------------------

    async def take(self, claim: Claim) -> Lease | None:
        """Return the lease if the lock has no record; one round trip. None if there is one."""
        asked_at = self._clock.now()
        record, ttl = claim.record_since(claim.since), claim.ttl_seconds
        try:
            version = await self.store.acreate(claim.lock_id, record, ttl)
        except StoreUnavailable as trouble:
            if not trouble.in_doubt:
                raise
            lease = await self._take_after(trouble, claim, record, asked_at)
            if lease is None and trouble.slow:
                # The late command may arrive when the holder has gone, and grant it to nobody.
                self.release_later(claim.lease(asked_at, record, None, unsettled=True))
            return lease
        if version is None:
            return None
        facts = claim.lock_id, claim.token, asked_at + ttl, ttl
        return Lease(*facts, record=record, version=version, priority=claim.priority._value_)

    async def _take_after(
        self, trouble: StoreUnavailable, claim: Claim, record: bytes | None, asked_at: float
    ) -> Lease | None:
        """Find out whether a command whose reply was lost has granted the lock.

        If there is no record (the connection was dead), `record` is created again.
        """
        try:
            found = await self.look(claim.lock_id, hurry=trouble.slow)
            if found is None and record is not None:
                version = await self.store.acreate(claim.lock_id, record, claim.ttl_seconds)
                if version is not None:  # a slow first one may land after the release
                    return claim.lease(asked_at, record, version, unsettled=trouble.slow)
                found = await self.look(claim.lock_id, hurry=trouble.slow)
        except StoreUnavailable as later:
            later.sent = True  # the first command was
            raise
        return None if found is None else self.granted(claim, found, asked_at)

    def granted(self, claim: Claim, record: Record, asked_at: float) -> Lease | None:
        """Return the lease that the record grants to the claim; None if it grants none."""
        if record.holder.token != claim.token or record.free:
            return None
        stored = record.stored
        return claim.lease(asked_at, stored.record, stored.version, contended=not record.empty)

    async def claim(self, claim: Claim, record: Record, *, passing: bool) -> Lease | None:
        """Take over a free record, if it is still as it was read.

        An interactive claim lets those stay that have queued up since: none comes before it.
        `passing`: whether to pass the waiters ahead, which have not taken their turn.
        """
        asked_at = self._clock.now()
        granted = claim.record_since(self._clock.wall())  # waiters poll by the time of the grant
        successor = record.succeeded_by(granted, claim.token, passing=passing)
        swap = self.store.atake_over if claim.priority is Priority.INTERACTIVE else self.store.aswap
        change = claim.lock_id, record.stored.version, successor, claim.ttl_seconds
        return await self._taken_by(claim, asked_at, successor, swap, *change)

    async def begin(self, claim: Claim, seen: Record | None) -> Lease | None:
        """Take a lock whose record is gone, and restore its queue as it was last `seen`."""
        asked_at = self._clock.now()
        record = claim.record_since(self._clock.wall())
        if seen is not None:
            record = seen.succeeded_by(record, claim.token)
        change = claim.lock_id, record, claim.ttl_seconds
        return await self._taken_by(
            claim, asked_at, record, self.store.acreate, *change, again=claim.record
        )

    async def _taken_by(
        self,
        claim: Claim,
        asked_at: float,
        record: bytes,
        verb: Callable[[*_Args], Coroutine[Any, Any, object | None]],
        *args: *_Args,
        again: bytes | None = None,
    ) -> Lease | None:
        """Return the lease that a change of the store grants; None if it was prevented."""
        try:
            version = await verb(*args)
        except StoreUnavailable as trouble:
            if not trouble.in_doubt:
                raise
            lease = await self._take_after(trouble, claim, again, asked_at)
            if lease is None and trouble.slow:
                trouble.serves_others = True
                raise  # it may still be carried out
            return lease
        if version is None:
            return None
        return claim.lease(asked_at, record, version, contended=b"\n" in record)

    # --- waiting ----------------------------------------------------------------------------

    async def look(
        self, lock_id: str, *, hurry: bool = False, known: Record | None = None
    ) -> Record | None:
        """Return the record; None if there is none. `known`: the record as it was read before."""
        stored = await self.store.aread(lock_id, hurry=hurry)
        if stored is None:
            return None
        return Record(stored) if known is None else known.again(stored)

    async def join(self, claim: Claim, *, again: bool = False) -> Record | None:
        """Join the queue; return the record, None if there is none. Safe to repeat."""
        stored = await self.append(claim.lock_id, joining(claim.holder, again=again))
        return None if stored is None else Record(stored)

    async def leave(self, lock_id: str, token: str) -> None:
        """Leave the queue. The last waiter to leave a free lock removes its record."""
        stored = await self.append(lock_id, done(token))
        if stored is not None and (record := Record(stored)).free:
            await self._ended(lock_id, record)

    async def append(self, lock_id: str, entry: bytes) -> Stored | None:
        """Append an entry that means the same if it is there twice; return the record, if any."""
        return await self._append_by(self.store.aappend, lock_id, entry)

    async def _append_by(
        self, verb: Callable[[str, bytes], Coroutine[Any, Any, _Answer]], lock_id: str, entry: bytes
    ) -> _Answer:
        try:
            return await verb(lock_id, entry)
        except StoreUnavailable as trouble:
            if trouble.slow or not trouble.sent:
                await self._try_others(trouble, lock_id)
                raise
        try:
            return await verb(lock_id, entry)
        except StoreUnavailable as later:
            later.sent = True  # the first one was
            raise

    async def _try_others(self, trouble: StoreUnavailable, lock_id: str) -> None:
        """Find out whether a server that was slow to change a record serves other requests."""
        if trouble.slow:
            with contextlib.suppress(StoreUnavailable):
                await self.store.aread(lock_id, hurry=True)
                trouble.serves_others = True

    async def reserve(self, claim: Claim, record: Record, *, leaving: bool) -> bool:
        """Reserve a free lock for its queue, for a claim that is not served, and may be `leaving`.

        Return whether it is reserved; not if the record has changed meanwhile.
        """
        # By another token: the claim's own may yet be queued, or have the lock.
        by = claim.afresh()
        besides, version = claim.token, record.stored.version
        reserved, seconds = record.reserved_by(
            by.record, by.token, besides=besides, leaving=leaving
        )
        return await self.store.aswap(claim.lock_id, version, reserved, seconds) is not None

    # --- giving back ------------------------------------------------------------------------

    async def release(self, lease: Lease, *, again: bool = False) -> leases.Released | Lost:
        """Release the lock: one round trip, two if the first waiter came meanwhile.

        `again`: the store has answered a release of this lease. It is looked up first then: a line
        for each attempt would fill the record.
        """
        if again:
            record = await self.look(lease.lock_id)
            if record is None or not record.names(lease.token):
                return self._lost(lease, record)
        removing = lease.version is not None and not lease.contended
        try:
            if removing and await self.store.aremove(lease.lock_id, lease.version):
                return leases.RELEASED
            removing = False  # it was refused
            return await self._end(lease)
        except StoreUnavailable as trouble:
            outcome = await self._end_after(trouble, lease, removing=removing)
            if outcome is None:
                raise
            return outcome

    async def _end(self, lease: Lease) -> leases.Released | Lost:
        """Append the holder's last entry; the next waiter reads it."""
        record = await self._append_done(lease.lock_id, lease.token)
        if record is None:
            return self._lost(lease, None)
        if record.holder.token != lease.token:
            # Append and read are not one step in every store: others may have taken over.
            if record.succeeds_released(lease.token):
                return leases.RELEASED_TO_QUEUE
            if record.free and lease.version is None:  # a waiter that was next has left
                await self._ended(lease.lock_id, record)
            return self._lost(lease, record)
        if record.lapsed or record.broken_by:
            return self._lost(lease, record)
        return await self._ended(lease.lock_id, record)

    async def _append_done(self, lock_id: str, token: str, *, by: str = "") -> Record | None:
        """Append the entry that ends a hold; return the record, which may be the next holder's.

        A store without room leaves the entry out: a compacted record with it replaces the whole.
        """
        line = done(token, by=by)
        for _ in range(MOST_SWAPS):
            stored = await self.store.aappend_and_wake(lock_id, line)
            if stored is None:
                return None
            record = Record(stored)
            if record.holder.token != token or record.released:
                return record
            short = record.compacted() + line
            version = await self.store.aswap(lock_id, stored.version, short, _ENDED_SECONDS)
            if version is not None:
                return Record(Stored(short, version, stored.lapsed))
        raise RecordBusy(f"others changed the record of lock {quoted(lock_id)} all the time")

    async def _ended(self, lock_id: str, record: Record) -> leases.Released:
        """Remove the record of a free lock, if nobody waits."""
        if not record.empty:
            return leases.RELEASED_TO_QUEUE
        # Best effort: the record shows a free lock, and ends by itself.
        with contextlib.suppress(StoreUnavailable):
            await self.store.aremove(lock_id, record.stored.version)
        return leases.RELEASED

    async def _end_after(
        self, trouble: StoreUnavailable, lease: Lease, *, removing: bool
    ) -> leases.Released | Lost | None:
        """Find the outcome of a release that was not answered; None if it is not known."""
        # (Not raised here: an exception that is raised where it is an argument
        # keeps its own traceback alive, until the collector comes.)
        if not trouble.sent:
            return None
        record = await self.look(lease.lock_id, hurry=trouble.slow)
        trouble.serves_others = True  # it has just answered
        if record is None:
            # Either the remove whose reply was lost did its work, or the store had forgotten it.
            return leases.RELEASED if removing and self._clock.now() < lease.deadline else None
        if record.holder.token == lease.token:
            if record.released and not record.broken_by:  # the entry without an answer is there
                return await self._ended(lease.lock_id, record)
            return await self._end(lease)
        if record.succeeds_released(lease.token):
            return leases.RELEASED_TO_QUEUE  # and the next waiter has read it
        if record.succeeds_broken(lease.token):
            return self._lost(lease, record)
        return None  # it was forgotten, or our command has ended it and others came and went

    def _lost(self, lease: Lease, record: Record | None) -> Lost:
        """Return the fate of a lease, as far as the record shows it."""
        ran_out = self._clock.now() >= lease.deadline
        holder = None
        if record is not None:
            ours = record.holder.token == lease.token
            if not ours and not record.free:
                holder = record.holder
            by = record.broken_by if ours else record.succeeds_broken(lease.token)
            if by:
                return Lost("broken", holder, by)
        if ran_out:
            return Lost("ran out", holder)
        return Lost("forgotten" if holder is None else "taken", holder)

    async def break_(self, lock_id: str, record: Record, by: str) -> bool:
        """End the lease that the record shows, and no other; return whether that was done.

        A record of another program names no token: it is removed.
        """
        token = record.holder.token
        if not token:
            return await self.store.aremove(lock_id, record.stored.version)
        after = await self._append_done(lock_id, token, by=by)
        if after is None:
            return False
        if after.holder.token != token:  # the next waiter may have been quick
            return bool(after.succeeds_broken(token))
        return bool(after.broken_by)

    # --- keeping ----------------------------------------------------------------------------

    async def extend(self, lease: Lease, ttl_seconds: float) -> Granted | Lost:
        """Return a new lease that ends `ttl_seconds` from now, if this one is still ours.

        A lease that is over by the holder's clock is not revived.
        """
        version, record, contended = lease.version, lease.record, lease.contended
        for _ in range(MOST_SWAPS):
            asked_at = self._clock.now()
            if asked_at >= lease.deadline:
                return self._lost(lease, None)
            if version is not None:
                try:
                    new = await self.store.atake_over(lease.lock_id, version, record, ttl_seconds)
                except StoreUnavailable as trouble:
                    await self._try_others(trouble, lease.lock_id)
                    raise
                if new is not None:
                    lease = lease._replace(ttl_seconds=ttl_seconds)
                    return _granted(lease, asked_at, record, new, contended=contended)
            found = await self.look(lease.lock_id)
            if found is None or found.holder.token != lease.token or found.free:
                return self._lost(lease, found)
            version, record = found.stored.version, found.compacted()
            contended = not found.empty
        raise RecordBusy(f"others changed the record of lock {quoted(lease.lock_id)} all the time")

    async def fence(self, lease: Lease) -> Fenced | Lost:
        """Return a number that is higher than any of an earlier lease, if this one is still ours.

        The record is changed for it, so a later lease of it has a higher number.
        """
        for _ in range(_MOST_CHANGES):
            found = await self._append_by(self.store.afence, lease.lock_id, CHANGE)
            if found is None:
                return self._lost(lease, None)
            stored, number = found
            record = Record(stored)
            if record.holder.token != lease.token or record.free:
                return self._lost(lease, record)
            # Without room in the record there was no change. (Or others appended in between.)
            if stored.record.endswith(CHANGE):
                contended = not record.empty
                short, version = record.compacted(), stored.version
                new = lease._replace(record=short, version=version, contended=contended)
                return Fenced(new, number)
        raise RecordBusy(f"the record of lock {quoted(lease.lock_id)} takes no change for a fence")

    async def confirm(self, lease: Lease) -> Granted | Held | None:
        """Ask for a lock that was taken while the store did not answer, from now on.

        The record has the lease's own token, so an earlier attempt that lands late does no harm.
        None if the lock is free and others come first, or the record was changed all the time:
        ask again in a moment.
        """
        for _ in range(MOST_SWAPS):
            asked_at = self._clock.now()
            record, contended = lease.record, False
            version = await self.store.acreate(lease.lock_id, record, lease.ttl_seconds)
            if version is None:
                found = await self.look(lease.lock_id)
                if found is None:
                    continue  # released at this very moment
                if found.holder.token == lease.token and not found.free:
                    record = found.compacted()
                elif found.is_turn_of(lease.token):
                    record = found.succeeded_by(record, lease.token, passing=True)
                else:
                    return await self._refused(lease, found)
                contended = not found.empty
                version = await self.store.aswap(
                    lease.lock_id, found.stored.version, record, lease.ttl_seconds
                )
                if version is None:
                    continue
            return _granted(lease, asked_at, record, version, contended=contended)
        return None

    async def _refused(self, lease: Lease, found: Record) -> Held | None:
        """Return the holder of a lock that cannot be confirmed; None if it is free for others."""
        if not found.free:
            if found.position_of(lease.token) is not None:
                await self.leave(lease.lock_id, lease.token)
            return Held(found.holder)
        if found.can_be_reserved_by(lease.token):
            claim = Claim.of_lease(lease)
            await self.reserve(claim, found, leaving=False)
        return None


def _granted(
    lease: Lease, asked_at: float, record: bytes, version: object, *, contended: bool
) -> Granted:
    """Return the lease as it stands in the store from now on, for its whole length."""
    deadline = asked_at + lease.ttl_seconds
    new = lease._replace(deadline=deadline, record=record, version=version, contended=contended)
    return Granted(new._replace(degraded=False))
