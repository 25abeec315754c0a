"""Leases that were taken while the store did not answer: how they go on."""

from __future__ import annotations

from userlock.lock.lease import Granted, Lease, Lost, Unavailable
from userlock.lock.policy import OutagePolicy


def extended(
    lease: Lease, seconds: float, now: float, outage: OutagePolicy
) -> Granted | Lost | Unavailable:
    """The lease with its end `seconds` from now, without the store's word, as it was taken.

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
