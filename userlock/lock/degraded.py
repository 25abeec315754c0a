"""Leases that were taken while the store did not answer: how they go on."""

from __future__ import annotations

from userlock.clock import Clock
from userlock.lock.lease import Granted, Held, Lease, Lost, Unavailable, claim_of
from userlock.lock.policy import OutagePolicy
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.upkeep import MOST_SWAPS, offer


def extended(
    lease: Lease, seconds: float, now: float, outage: OutagePolicy
) -> Granted | Lost | Unavailable:
    """Return the lease with its end `seconds` from now, without the store's word, as it was taken.

    Where the fallback service has granted one beside it, that one is extended,
    and says whether the lock is still ours.

    Args:
        lease: a degraded one.
        seconds: how long it shall last from now.
        now: on the holder's clock.
        outage: what to do when the fallback does not answer either.
    """
    if now >= lease.deadline:
        return Lost("ran out")
    deadline = now + seconds
    if lease.also is not None:
        also, origin = lease.also
        match origin.extend(also, seconds):
            case Granted(new):
                lease = lease._replace(also=(new, origin))
                deadline = new.deadline
            case Lost("ran out", None) if outage is OutagePolicy.OPTIMISTIC:
                pass  # while the fallback did not answer either; nobody is known to have it
            case Lost() as lost:
                return lost
            case unavailable:
                if outage is OutagePolicy.FAIL:
                    return unavailable
    return Granted(lease._replace(deadline=deadline, ttl_seconds=seconds))


def confirm(leases: LeaseProtocol, lease: Lease, clock: Clock) -> Granted | Held | None:
    """Ask for a lock that was taken while the store did not answer.

    Its record is created under the lease's own token, so it does not
    matter if an earlier attempt has landed meanwhile. Its time to live
    begins anew all the same: the holder counts from now. Where it stood in
    line before the store went away, it does so no longer once another has it.

    Returns:
        None if the lock is free and others come first, or the record was changed all the time: to
        be asked again in a moment.

    Raises:
        StoreUnavailable: it still does not answer.
    """
    for _ in range(MOST_SWAPS):
        asked_at = clock.now()
        record, contended = lease.record, False
        version = leases.store.create(lease.lock_id, record, lease.ttl_seconds)
        if version is None:
            found = leases.look(lease.lock_id)
            if found is None:
                continue  # released at this very moment
            if found.holder.token == lease.token and not found.free:
                record, contended = found.compacted(), not found.empty
            elif found.is_turn_of(lease.token):
                record = found.succeeded_by(lease.record, lease.token, passing=True)
                contended = not found.empty
            elif found.free:
                if found.can_be_offered_by(lease.token):
                    claim = claim_of(lease.lock_id, lease.record, lease.ttl_seconds)
                    offer(leases.store, claim, found, leaving=False)
                return None
            else:
                if found.position_of(lease.token) is not None:
                    leases.leave(lease.lock_id, lease.token)
                return Held(found.holder)
            version = leases.store.swap(
                lease.lock_id, found.stored.version, record, lease.ttl_seconds
            )
            if version is None:
                continue
        return Granted(
            lease._replace(
                deadline=asked_at + lease.ttl_seconds,
                degraded=False,
                record=record,
                version=version,
                contended=contended,
            )
        )
    return None
