"""Extending many leases at once: in one packet, where the store can do that.

One thread renews all leases of a process. Where the process computes without
pause, that thread waits for its turn to run after each packet (5 ms by
default, `sys.setswitchinterval`), so it is packets that have to be few:

    one by one       extend ▶ ◀ (5 ms) extend ▶ ◀ (5 ms) extend ▶ ◀ …
    together         extend, extend, extend, … ▶ ◀ (5 ms)

What was refused has changed: somebody waits in line, or an answer was lost
before. Each of those is looked at, and extended, by itself. So is what a
connection that breaks in the middle leaves in doubt, when it is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from userlock.lock.breaker import CircuitBreaker
from userlock.lock.lease import Granted, Lease, Lost, Unavailable
from userlock.lock.store import StoreUnavailable, Swap
from userlock.lock.store_client import StoreClient

if TYPE_CHECKING:
    from userlock.lock.service import LockService

#: A lease, and for how many seconds it is to run from now on.
Wanted = tuple[Lease, float]
Outcome = Granted | Lost | Unavailable


def extend_many(
    service: LockService, access: StoreClient, wanted: Sequence[Wanted]
) -> list[Outcome]:
    """Return the result of `LockService.extend` for each lease, in their order.

    A server that does not answer costs one time-out for all leases that are on it.
    """
    known: dict[str, Outcome] = {}  # by token
    if service.store.batches:
        for breaker, some in _by_server(service, access, wanted).items():
            known |= _together(service, access, breaker, some)
    return [
        known[lease.token] if lease.token in known else service.extend(lease, seconds)
        for lease, seconds in wanted
    ]


def _by_server(
    service: LockService, access: StoreClient, wanted: Sequence[Wanted]
) -> dict[CircuitBreaker, list[Wanted]]:
    """Return those whose record need not be looked at first."""
    now = service.clock.now()
    found: dict[CircuitBreaker, dict[str, Wanted]] = {}
    for lease, seconds in wanted:
        if lease.version is not None and not lease.degraded and now < lease.deadline:
            some = found.setdefault(access.breaker_of(lease.lock_id), {})
            some.setdefault(lease.lock_id, (lease, seconds))  # each lock once
    return {breaker: list(some.values()) for breaker, some in found.items()}


def _together(
    service: LockService, access: StoreClient, breaker: CircuitBreaker, wanted: Sequence[Wanted]
) -> dict[str, Outcome]:
    """Renew the leases of one server; return the outcomes by token."""
    if not breaker.allows():
        unavailable = Unavailable(breaker.reason, sent=False)
        return {lease.token: unavailable for lease, _ in wanted}
    asked_at = service.clock.now()
    answers = service.store.swap_many(
        [Swap(lease.lock_id, lease.version, lease.record, seconds) for lease, seconds in wanted]
    )
    trouble = next((each for each in answers if isinstance(each, StoreUnavailable)), None)
    if trouble is None:
        access.answered(breaker)
    else:
        access.failed(breaker, asked_at, trouble)
    outcomes: dict[str, Outcome] = {}
    for (lease, seconds), answer in zip(wanted, answers, strict=True):
        match answer:
            case StoreUnavailable():
                outcomes[lease.token] = Unavailable(answer.reason, answer.sent)
            case None:  # it is not of that version any more
                outcomes[lease.token] = service.extend(lease._replace(version=None), seconds)
            case version:
                outcomes[lease.token] = Granted(
                    lease._replace(
                        deadline=asked_at + seconds, ttl_seconds=seconds, version=version
                    )
                )
    return outcomes
