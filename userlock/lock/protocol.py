"""Leases on top of a store's register: taken, kept and given back, each by its owner alone.

Every change names the version of the record that it was decided on, or
appends a line that means nothing to anybody but its owner. So nothing here
can end or lengthen another's lease, whatever was lost, late or restarted in
between:

    we                        store                        next owner
    create ─────────────────▶ version 1
    (paused for longer than the lease)
                              lapsed
                              version 2 ◀───────────────── swap 1
    remove 1 ───────────────▶ refused: it is version 2
    append "= our token" ───▶ the record names the next owner: lost
                              (the line means nothing to them)

After an error it is not known whether a command was carried out; the record
says so. `StoreUnavailable` leaves this module only when the record could not
be read either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from userlock.clock import Clock
from userlock.lock.lease import (
    RELEASED,
    Claim,
    Granted,
    Lease,
    Lost,
    Released,
    claim_of,
)
from userlock.lock.record import Record, done, joining
from userlock.lock.store import LeaseStore, Stored, StoreUnavailable
from userlock.lock.upkeep import MOST_SWAPS, say_done

_new_tuple = tuple.__new__


class LeaseProtocol:
    """The leases in one store. Thread-safe. Raises `StoreUnavailable` as described above."""

    def __init__(self, store: LeaseStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        #: Told of a lease that nobody wants any more, and that may yet be granted.
        self.late: Callable[[Lease], object] = lambda _: None

    # --- taking -----------------------------------------------------------------------------

    def take(self, claim: Claim) -> Lease | None:
        """Return the lease, if nobody has the lock; one round trip. None when there is a record."""
        return self.take_at(
            self._clock.now(),
            claim.lock_id,
            claim.token,
            claim.record,
            claim.ttl_seconds,
            claim.holder.priority,
        )

    def take_at(
        self,
        asked_at: float,
        lock_id: str,
        token: str,
        record: bytes,
        ttl_seconds: float,
        priority: str,
    ) -> Lease | None:
        """The same from the parts of a claim, `asked_at` being now: nearly every lock is free."""
        try:
            version = self.store.create(lock_id, record, ttl_seconds)
        except StoreUnavailable as trouble:
            if not trouble.sent:
                raise
            claim = claim_of(lock_id, record, ttl_seconds)
            lease = self._take_after(trouble, claim, asked_at)
            if lease is None and trouble.slow:
                # Refused now; but when whoever has the lock has gone, it may
                # arrive, and be granted to nobody.
                self.late(self._lease(claim, asked_at, record, None, unsettled=True))
            return lease
        if version is None:
            return None
        # Counted from before the question, so that ours ends first.
        deadline = asked_at + ttl_seconds
        # As `Lease(…)`, which would take twice as long to do the same: all of its fields.
        # fmt: off
        return _new_tuple(Lease, (
            lock_id, token, deadline, ttl_seconds, False, False, record, version, False, priority,
            None,
        ))
        # fmt: on

    def _take_after(self, trouble: StoreUnavailable, claim: Claim, asked_at: float) -> Lease | None:
        """The reply to a create was lost: find out whether the lock is ours.

        Also where a connection turns out dead that stood idle while the
        server was restarted; then the record is simply created again. That is
        safe at any time: both have the same token.
        """
        try:
            record = self.look(claim.lock_id, hurry=trouble.slow)
            if record is None:
                version = self.store.create(claim.lock_id, claim.record, claim.ttl_seconds)
                if version is not None:
                    # If the first one was slow it may still be on its way, and
                    # land after the release.
                    return self._lease(
                        claim, asked_at, claim.record, version, unsettled=trouble.slow
                    )
                record = self.look(claim.lock_id, hurry=trouble.slow)
        except StoreUnavailable as later:
            later.sent = True  # the create was, whatever became of looking for it
            raise
        return None if record is None else self.granted(claim, record, asked_at)

    def granted(self, claim: Claim, record: Record, asked_at: float) -> Lease | None:
        """Return the lease that the record turns out to grant to the claim; None if it does not."""
        if record.holder.token != claim.token or record.free:
            return None
        return self._lease(
            claim,
            asked_at,
            record.stored.record,
            record.stored.version,
            contended=not record.empty,
        )

    def claim(self, claim: Claim, record: Record, *, passing: bool) -> Lease | None:
        """Take over a record that is free, if it is still as it was read.

        Args:
            claim: whose turn it is.
            record: as it was read; `record.free`.
            passing: go past those who have not taken their turn.
        """
        asked_at = self._clock.now()
        successor = record.succeeded_by(self._from_now(claim), claim.token, passing=passing)
        try:
            version = self.store.swap(
                claim.lock_id, record.stored.version, successor, claim.ttl_seconds
            )
        except StoreUnavailable as trouble:
            if not trouble.sent:
                raise
            try:
                found = self.look(claim.lock_id, hurry=trouble.slow)
            except StoreUnavailable as later:
                later.sent = True  # the swap was, whatever became of looking for it
                raise
            lease = None if found is None else self.granted(claim, found, asked_at)
            if lease is None and trouble.slow:
                raise  # it may still be carried out
            return lease
        if version is None:
            return None
        return self._lease(claim, asked_at, successor, version, contended=True)

    def begin(self, claim: Claim, seen: Record | None) -> Lease | None:
        """Take a lock that has no record any more, with those who waited in it.

        Args:
            claim: whose turn it is.
            seen: the record as it was last seen, if it was.
        """
        asked_at = self._clock.now()
        record = self._from_now(claim)
        if seen is not None:
            record = seen.succeeded_by(record, claim.token)
        try:
            version = self.store.create(claim.lock_id, record, claim.ttl_seconds)
        except StoreUnavailable as trouble:
            if not trouble.sent:
                raise
            lease = self._take_after(trouble, claim, asked_at)
            if lease is None and trouble.slow:
                raise  # it may still be carried out
            return lease
        if version is None:
            return None
        return self._lease(claim, asked_at, record, version, contended=seen is not None)

    def _from_now(self, claim: Claim) -> bytes:
        """Return the claim's record, with the time of the grant: those who wait go by it."""
        return claim.holder._replace(since=self._clock.wall()).encode()

    @staticmethod
    def _lease(
        claim: Claim,
        asked_at: float,
        record: bytes,
        version: object,
        *,
        contended: bool = False,
        unsettled: bool = False,
    ) -> Lease:
        return Lease(
            lock_id=claim.lock_id,
            token=claim.token,
            deadline=asked_at + claim.ttl_seconds,
            ttl_seconds=claim.ttl_seconds,
            unsettled=unsettled,
            record=record,
            version=version,
            contended=contended,
            priority=claim.holder.priority,
        )

    # --- waiting ----------------------------------------------------------------------------

    def join(self, claim: Claim, *, again: bool = False) -> Record | None:
        """Stand in line, and see the record; None when there is none. Safe to repeat."""
        stored = self.write_line(claim.lock_id, joining(claim.holder, again=again))
        return None if stored is None else Record(stored)

    def leave(self, lock_id: str, token: str) -> None:
        """Stand in line no longer."""
        self.write_line(lock_id, done(token))

    def look(
        self, lock_id: str, *, hurry: bool = False, seen: Record | None = None
    ) -> Record | None:
        """Return the record as it is. `seen` is how it was at the last look: mostly it still is."""
        stored = self.store.read(lock_id, hurry=hurry)
        if stored is None:
            return None
        if seen is not None and seen.stored.record == stored.record:
            seen.stored = stored
            return seen
        return Record(stored)

    # --- giving back ------------------------------------------------------------------------

    def release(self, lease: Lease) -> Released | Lost:
        """Give the lock to whoever waits, or to nobody.

        One round trip when nobody came to wait, or when others were waiting
        from the start; two when somebody came meanwhile.
        """
        sent = False
        try:
            if lease.version is not None and not lease.contended:
                sent = True
                if self.store.remove(lease.lock_id, lease.version):
                    return RELEASED
                sent = False  # it was refused
            return self._end(lease)
        except StoreUnavailable as trouble:
            outcome = self._end_after(trouble, lease, removing=sent)
            if outcome is None:
                raise
            return outcome

    def _end(self, lease: Lease) -> Released | Lost:
        """Say that the holder is done; whoever is next sees it."""
        record = say_done(self.store, lease.lock_id, lease.token)
        if record is None:
            return self._lost(lease, None)
        if record.holder.token != lease.token:
            # Append and read are not one step in every store: whoever is next
            # may have taken over in between.
            return (
                Released() if record.succeeds_released(lease.token) else self._lost(lease, record)
            )
        if record.lapsed or record.broken_by:
            return self._lost(lease, record)
        return self._ended(lease, record)

    def _ended(self, lease: Lease, record: Record) -> Released:
        """The record says that we are done. If nobody waits, it can go."""
        if record.empty:
            # Whatever comes of it: the record says that it is free, and ends by itself.
            with contextlib.suppress(StoreUnavailable):
                self.store.remove(lease.lock_id, record.stored.version)
        return RELEASED

    def _end_after(
        self, trouble: StoreUnavailable, lease: Lease, *, removing: bool
    ) -> Released | Lost | None:
        """Find the outcome of a release that was not answered; None if it is not known."""
        # (Not raised here: an exception that is raised where it is an argument
        # keeps its own traceback alive, until the collector comes.)
        if not trouble.sent:
            return None
        record = self.look(lease.lock_id, hurry=trouble.slow)
        if record is None:
            # Either the remove whose reply was lost did its work, or the store had forgotten it.
            return RELEASED if removing and self._clock.now() < lease.deadline else None
        if record.holder.token == lease.token:
            if record.released and not record.broken_by:
                return self._ended(lease, record)  # the line whose answer was lost is there
            return self._end(lease)
        if record.succeeds_released(lease.token):
            return RELEASED  # and whoever was next has seen it
        if record.succeeds_broken(lease.token):
            return self._lost(lease, record)
        return None  # it was forgotten, or our command has ended it and others have come and gone

    def _lost(self, lease: Lease, record: Record | None) -> Lost:
        """Return the outcome of a lease, as far as the record shows it."""
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

    # --- keeping ----------------------------------------------------------------------------

    def extend(self, lease: Lease, ttl_seconds: float) -> Granted | Lost:
        """Return a new lease that ends `ttl_seconds` from now, if this one is still ours.

        One round trip if nobody has come to wait. A lease that is over by the
        holder's clock is not revived.
        """
        version, record, contended = lease.version, lease.record, lease.contended
        for _ in range(MOST_SWAPS):
            asked_at = self._clock.now()
            if asked_at >= lease.deadline:
                break
            if version is not None:
                new = self.store.swap(lease.lock_id, version, record, ttl_seconds)
                if new is not None:
                    return Granted(
                        lease._replace(
                            deadline=asked_at + ttl_seconds,
                            ttl_seconds=ttl_seconds,
                            degraded=False,
                            record=record,
                            version=new,
                            contended=contended,
                        )
                    )
            found = self.look(lease.lock_id)
            if found is None or found.holder.token != lease.token or found.free:
                return self._lost(lease, found)
            version, record = found.stored.version, found.compacted()
            contended = not found.empty
        else:
            raise StoreUnavailable("others changed the record all the time", sent=False)
        return self._lost(lease, None)

    def write_line(self, lock_id: str, line: bytes) -> Stored | None:
        """Append a line to the record, if there is one; the record afterwards.

        For lines that mean the same when they are there twice, in whichever
        record: where the connection broke, it is sent again.
        """
        try:
            return self.store.append(lock_id, line)
        except StoreUnavailable as trouble:
            if trouble.slow or not trouble.sent:
                raise
        try:
            return self.store.append(lock_id, line)
        except StoreUnavailable as later:
            later.sent = True  # the first one was, whatever became of this
            raise

    def break_(self, lock_id: str, record: Record, by: str) -> bool:
        """End the lease that the record shows, and no other; whether that was done.

        The line names the lease by its token, and means nothing to the next
        one. A record that is none of ours names nobody: it is removed.
        """
        token = record.holder.token
        if not token:
            return self.store.remove(lock_id, record.stored.version)
        after = say_done(self.store, lock_id, token, by=by)
        if after is None:
            return False
        if after.holder.token != token:  # the next one may have been quick
            return bool(after.succeeds_broken(token))
        return bool(after.broken_by)
