"""Any value under a lock's key can be shown and broken; on servers: test_poisoned_servers.py."""

from __future__ import annotations

import json
from random import Random

from hypothesis import example, given

from tests.poison import unhurried, values
from tests.property.test_record_garbage import is_safe
from userlock.admin import locks as snapshot
from userlock.events import Listeners
from userlock.lock.policy import OutagePolicy
from userlock.lock.service import LockService
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

ANN = "ann"
#: Seconds within which dead waiters have been passed; the record lasts longer.
PASSED_OVER = 10.0


def poisoned(value: bytes) -> LockService:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.create(ANN, value, 60.0)
    outage, listeners = OutagePolicy.FAIL, Listeners()
    return LockService(store, clock=clock, random=Random(1), outage=outage, listeners=listeners)


@unhurried
@given(values)
@example(b'["4f01","interactive",-1e999,60,"web","GET /"]')
@example(b'["4f01","interactive",1,NaN,"web","GET /"]')
@example(b'["4f01","interactive",1,60,"web","GET /"]\n+i 4f02 nan ["web","GET /"]')
def test_what_is_shown_of_it_can_be_printed(value: bytes) -> None:
    service = poisoned(value)
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
@example(b'["two words","interactive",1,60,"web","GET /"]')
def test_it_can_be_broken_like_any_lock(value: bytes) -> None:
    service = poisoned(value)
    service.break_lock(ANN, by="ops\x1b[2J")
    lease = service.acquire(ANN, wait_timeout=PASSED_OVER)  # the apparent waiter does not wait
    assert not lease.degraded
