"""The value of a lock during an outage of its server, and its recovery."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

import userlock
from tests.faults.watching import Watched
from tests.leases import record_of
from tests.servers import Memcached, RedisServer, redis_store
from tests.waiting import wait_until
from userlock import LockService, LockServiceUnavailable
from userlock.clock import SYSTEM_CLOCK
from userlock.events import Confirmed, Degraded, LeaseLost, Listeners, Released
from userlock.lock.renewal import RenewalThread
from userlock.lock.store import LeaseStore
from userlock.stores import MemcacheStore, MemoryStore

Server = Memcached | RedisServer
#: What fifty locks take at most while the breaker is open; without it, 15 s.
BOUND_SECONDS = 5.0


@contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


def stopped(server: Server) -> AbstractContextManager[None]:
    return server.paused()


def tidy_up(service: LockService) -> None:
    """Return when the service has had a reply again, and has sent its pending releases."""
    deadline = time.monotonic() + 5
    while True:
        lease = service.acquire(uuid.uuid4().hex)
        service.release(lease)
        if not lease.degraded:
            return
        assert time.monotonic() < deadline


OUTAGES = pytest.mark.parametrize("outage", [killed, stopped])
Outage = Callable[[Server], AbstractContextManager[None]]


def store_on(server: Server) -> LeaseStore:
    """Return a store of its own for the same keys, as another process has it."""
    if isinstance(server, RedisServer):
        return redis_store(f"{server.url}?prefix=test")
    return MemcacheStore(server.address, prefix="test")


def watched_on(
    server: Server, policy: str = "optimistic", standing_in: MemoryStore | None = None
) -> Watched:
    """Return a service in use, with one of the policies."""
    fallback = standing_in and LockService(standing_in, outage="fail", listeners=Listeners())
    watched = Watched(
        store_on(server),
        outage="optimistic" if policy == "optimistic" else "fail",
        fallback=fallback if policy == "fallback" else None,
    )
    for number in range(3):
        watched.service.release(watched.service.acquire(f"warm-up-{number}"))
    return watched


class TestAnswers:
    @OUTAGES
    @pytest.mark.parametrize(
        ("kind", "policy"),
        [("memcached", "optimistic"), ("memcached", "fail"), ("redis", "fallback")],
    )
    def test_each_is_as_the_policy_says_and_costs_next_to_nothing(
        self, request: pytest.FixtureRequest, kind: str, policy: str, outage: Outage
    ) -> None:
        server: Server = request.getfixturevalue(f"own_{kind}")
        standing_in = MemoryStore()
        watched = watched_on(server, policy, standing_in)
        with outage(server):
            started = time.monotonic()
            for number in range(50):
                outcome: object
                try:
                    outcome = watched.service.acquire(f"learner-{number}")
                except LockServiceUnavailable as error:
                    outcome = error
                self.assert_as_the_policy_says(policy, outcome, standing_in)
            assert time.monotonic() - started < BOUND_SECONDS
        if policy == "optimistic":
            assert len(watched.of(Degraded)) == 50
            assert all("at 127.0.0.1" in event.reason for event in watched.of(Degraded))

    @staticmethod
    def assert_as_the_policy_says(policy: str, outcome: object, standing_in: MemoryStore) -> None:
        if policy == "fail":
            assert isinstance(outcome, LockServiceUnavailable)
            assert "at 127.0.0.1" in str(outcome)
            return
        assert isinstance(outcome, userlock.Lease)
        assert outcome.degraded
        if policy == "fallback":
            assert not record_of(standing_in, outcome.lock_id).free


class TestConfirmation:
    @pytest.mark.parametrize(("outage", "heartbeat"), [(killed, True), (stopped, False)])
    def test_they_are_confirmed_after_it(
        self, own_memcached: Memcached, outage: Outage, heartbeat: bool
    ) -> None:
        watched = watched_on(own_memcached)
        with userlock.scope(watched.service) as scope:
            with outage(own_memcached):
                tenures = [
                    scope.acquire(f"learner-{number}", heartbeat=heartbeat) for number in range(20)
                ]
                assert all(tenure.degraded for tenure in tenures)
            wait_until(lambda: not any(tenure.degraded for tenure in tenures))
            assert len(watched.of(Confirmed)) == 20
            other = Watched(store_on(own_memcached)).service
            for tenure in tenures:
                with pytest.raises(userlock.LockTimeout):
                    other.acquire(tenure.lock_id, wait_timeout=0)
        tidy_up(watched.service)
        for tenure in tenures:
            assert other.look(tenure.lock_id) is None
        outcomes = {event.outcome for event in watched.of(Released)}
        assert outcomes <= {"released", "released (degraded)"}
        assert watched.of(LeaseLost) == []

    def test_without_the_renewal_thread_they_stay_degraded(self, own_memcached: Memcached) -> None:
        """The negative control."""
        unrenewed = RenewalThread(SYSTEM_CLOCK, threaded=False)
        watched = Watched(store_on(own_memcached), renewals=unrenewed)
        with userlock.scope(watched.service) as scope:
            with killed(own_memcached):
                tenure = scope.acquire("learner-1")
            tidy_up(watched.service)
            assert tenure.degraded
