"""Any value under a lock's key: the lock is never granted wrongly, and nothing breaks."""

from __future__ import annotations

import json
from random import Random

from hypothesis import example, given

from tests.poison import unhurried, values
from tests.property.test_record_garbage import is_safe
from userlock.admin import locks as snapshot
from userlock.errors import LockError
from userlock.events import Listeners
from userlock.lock.lease import Granted
from userlock.lock.policy import OutagePolicy
from userlock.lock.service import LockService
from userlock.stores import MemoryStore
from userlock.testing import ManualClock
from userlock.waits import run

ANN = "ann"
#: Seconds within which dead waiters have been passed; the record lasts longer.
PASSED_OVER = 10.0


def poisoned(value: bytes) -> tuple[LockService, MemoryStore]:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.create(ANN, value, 60.0)
    service = LockService(
        store,
        clock=clock,
        random=Random(1),
        outage=OutagePolicy.FAIL,
        listeners=Listeners(),
    )
    return service, store


def is_free(service: LockService) -> bool:
    record = service.look(ANN)
    return record is None or record.free


@unhurried
@given(values)
@example(b"[" * 100_000)
def test_a_lock_is_granted_only_when_the_record_says_it_is_free(value: bytes) -> None:
    service, _ = poisoned(value)
    was_free = is_free(service)
    lease, said = None, ""
    try:
        lease = service.acquire(ANN, wait_timeout=0)
    except LockError as error:
        said = str(error)
    assert said.isprintable()
    if lease is not None:
        assert was_free
        assert not lease.degraded
        service.release(lease)
        assert is_free(service)


@unhurried
@given(values)
@example(b'["4f01","interactive",-1e999,60,"web","GET /"]')
@example(b'["4f01","interactive",1,NaN,"web","GET /"]')
@example(b'["4f01","interactive",1,60,"web","GET /"]\n+i 4f02 nan ["web","GET /"]')
def test_what_is_shown_of_it_can_be_printed(value: bytes) -> None:
    service, _ = poisoned(value)
    holder = service.holder(ANN)
    if holder is not None:
        assert holder.describe().isprintable()
    for waiter in service.waiters(ANN):
        assert all(map(is_safe, (waiter.token, waiter.process, waiter.request)))
    wall = service.clock.wall()
    for seen in snapshot.take(service, [ANN]).select(wall, everything=True):
        if seen.record is not None:
            said = json.dumps(snapshot.holder_facts(seen.record, wall), allow_nan=False)
            said += json.dumps(
                [snapshot.waiter_facts(each, wall) for each in seen.record.waiters()]
            )
            assert said.isprintable()


@unhurried
@given(values)
def test_a_lease_that_somebody_has_written_over_is_lost_and_ends_nobody_elses(
    value: bytes,
) -> None:
    service, store = poisoned(value)
    store.forget_everything()
    lease = service.acquire(ANN)
    store.forget_everything()
    store.create(ANN, value, 60.0)
    outcome = run(service.extend, lease, 30.0)
    assert not isinstance(outcome, Granted)
    service.release(lease)
    stored = store.read(ANN)
    assert stored is not None
    assert stored.record.startswith(value)


@unhurried
@given(values)
@example(b'["two words","interactive",1,60,"web","GET /"]')
def test_it_can_be_broken_like_any_lock(value: bytes) -> None:
    service, _ = poisoned(value)
    service.break_lock(ANN, by="ops\x1b[2J")
    lease = service.acquire(ANN, wait_timeout=PASSED_OVER)  # the apparent waiter does not wait
    assert not lease.degraded
