"""The value of a lock during an outage of its server, and its recovery."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

import userlock
from tests.faults.tidy import tidy_up
from tests.faults.watching import Watched
from tests.leases import record_of
from tests.servers import Memcached, RedisServer
from tests.waiting import wait_until
from userlock import LockService, LockServiceUnavailable
from userlock.clock import SYSTEM_CLOCK
from userlock.events import Confirmed, Conflict, Degraded, LeaseLost, Listeners, Released
from userlock.lock.renewal import RenewalThread
from userlock.lock.store import LeaseStore
from userlock.stores import MemcacheStore, MemoryStore
from userlock.stores.redis import RedisStore

#: The margin of any bound on a busy machine with two cores.
SLACK_SECONDS = 0.1

Server = Memcached | RedisServer


@contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


def stopped(server: Server) -> AbstractContextManager[None]:
    return server.paused()


OUTAGES = pytest.mark.parametrize("outage", [killed, stopped])
Outage = Callable[[Server], AbstractContextManager[None]]


def timed(action: Callable[[], object]) -> tuple[float, object]:
    """Return the duration in seconds, and the result or the exception."""
    started = time.monotonic()
    try:
        outcome = action()
    except userlock.LockError as error:
        outcome = error
    return time.monotonic() - started, outcome


@pytest.fixture(params=["memcached", "redis"])
def server(request: pytest.FixtureRequest) -> Server:
    """Provide a real server that may be killed and stopped."""
    server: Server = request.getfixturevalue(f"own_{request.param}")
    return server


def store_on(server: Server) -> LeaseStore:
    """Return a store of its own for the same keys, as another process has it."""
    if isinstance(server, RedisServer):
        return RedisStore.from_url(server.url)
    return MemcacheStore(server.address)


@pytest.fixture(params=["optimistic", "fail", "fallback"])
def policy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def standing_in() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def watched(server: Server, policy: str, standing_in: MemoryStore) -> Watched:
    """Provide a service in use, with each of the policies."""
    fallback = LockService(standing_in, outage="fail", listeners=Listeners())
    watched = Watched(
        store=store_on(server),
        outage="optimistic" if policy == "optimistic" else "fail",
        fallback=fallback if policy == "fallback" else None,
    )
    for number in range(3):
        watched.service.release(watched.service.acquire(f"warm-up-{number}"))
    return watched


class TestAnswers:
    def test_a_killed_server_is_answered_for_within_50_ms(
        self, server: Server, watched: Watched, policy: str, standing_in: MemoryStore
    ) -> None:
        service = watched.service
        server.kill()
        times = []
        for number in range(20):
            took, outcome = timed(lambda number=number: service.acquire(f"learner-{number}"))  # type: ignore[misc]
            times.append(took)
            self.assert_as_the_policy_says(policy, outcome, standing_in)
        print(f"\nkilled, {policy}: first {times[0] * 1000:.1f} ms, max {max(times) * 1000:.1f} ms")
        assert max(times) < 0.05

    def test_a_stopped_one_costs_one_timeout_and_then_next_to_nothing(
        self, server: Server, watched: Watched, policy: str, standing_in: MemoryStore
    ) -> None:
        service = watched.service
        with server.paused():
            first, outcome = timed(lambda: service.acquire("first"))
            self.assert_as_the_policy_says(policy, outcome, standing_in)
            times = [timed(lambda n=n: service.acquire(f"x{n}"))[0] for n in range(50)]  # type: ignore[misc]
        median = statistics.median(times)
        print(f"\nstopped, {policy}: first {first:.3f} s, then median {median * 1000:.2f} ms")
        assert first < 0.5 + SLACK_SECONDS
        assert median <= 0.002

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
    @pytest.fixture
    def policy(self) -> str:
        return "optimistic"

    @OUTAGES
    def test_the_next_ones_are_confirmed_within_two_seconds(
        self, server: Server, watched: Watched, outage: Outage
    ) -> None:
        service = watched.service
        with outage(server):
            until = time.monotonic() + 1
            while time.monotonic() < until:
                timed(lambda: service.acquire("during", wait_timeout=0))

        def confirmed() -> bool:
            _, outcome = timed(lambda: service.acquire("after", wait_timeout=0))
            if not isinstance(outcome, userlock.Lease):
                return False
            service.release(outcome)
            return not outcome.degraded

        took = wait_until(confirmed)
        print(f"\nconfirmed again after {took:.2f} s")
        assert took < 2

    @OUTAGES
    @pytest.mark.parametrize("heartbeat", [True, False])
    def test_they_are_confirmed_within_two_seconds(
        self, server: Server, watched: Watched, outage: Outage, heartbeat: bool
    ) -> None:
        with userlock.scope(watched.service) as scope:
            with outage(server):
                tenures = [
                    scope.acquire(f"learner-{number}", heartbeat=heartbeat) for number in range(20)
                ]
                assert all(tenure.degraded for tenure in tenures)
            took = wait_until(lambda: not any(tenure.degraded for tenure in tenures))
            print(f"\n20 held locks confirmed after {took:.2f} s")
            assert took < 2
            assert len(watched.of(Confirmed)) == 20
            other = Watched(store=store_on(server)).service
            for tenure in tenures:
                with pytest.raises(userlock.LockTimeout):
                    other.acquire(tenure.lock_id, wait_timeout=0)
        tidy_up(watched.service)
        for tenure in tenures:
            assert other.look(tenure.lock_id) is None
        assert {event.outcome for event in watched.of(Released)} <= {
            "released",
            "released (degraded)",
        }
        assert watched.of(LeaseLost) == []

    def test_without_the_renewal_thread_they_stay_degraded(self, server: Server) -> None:
        """The negative control."""
        watched = Watched(
            store=store_on(server), renewals=RenewalThread(SYSTEM_CLOCK, threaded=False)
        )
        with userlock.scope(watched.service) as scope:
            with killed(server):
                tenure = scope.acquire("learner-1")
            tidy_up(watched.service)
            assert tenure.degraded

    @OUTAGES
    def test_one_that_another_has_by_then_is_in_conflict(
        self, server: Server, outage: Outage
    ) -> None:
        """Its renewal thread is driven by hand, so that the other client is first."""
        renewals = RenewalThread(SYSTEM_CLOCK, threaded=False)
        watched = Watched(store=store_on(server), renewals=renewals)
        other = Watched(store=store_on(server))
        with userlock.scope(watched.service) as scope:
            with outage(server):
                scope.acquire("first")  # commands to a stopped server are executed later
                tenure = scope.acquire("learner-1")
                assert tenure.degraded
            tidy_up(other.service)
            theirs = other.service.acquire("learner-1", request="POST /theirs", wait_timeout=0)

            def found_out() -> bool:
                renewals.run_due()
                return bool(tenure.conflict)

            wait_until(found_out)
            assert tenure.conflict.startswith("POST /theirs (interactive, lease of 60 s")
            assert Conflict("learner-1", tenure.conflict) in watched.events
            assert tenure.degraded
        tidy_up(watched.service)
        record = record_of(other.service.store, "learner-1")
        assert (record.holder.token, record.free) == (theirs.token, False)

    def test_a_release_at_the_moment_of_confirmation_leaves_nothing_behind(
        self, server: Server, watched: Watched
    ) -> None:
        """Locks that end all the time while the server comes back."""
        other = store_on(server)
        number = 0
        server.kill()
        with userlock.scope(watched.service) as scope:
            held = []
            for number in range(200):
                held.append(scope.acquire(f"learner-{number}").lock_id)
            server.start()
            for lock_id in held:
                scope.release(lock_id)
        tidy_up(watched.service)
        wait_until(lambda: all(other.read(f"learner-{n}") is None for n in range(number + 1)), 5)

    def test_each_degraded_lock_is_reported(self, server: Server, watched: Watched) -> None:
        server.kill()
        for number in range(10):
            watched.service.release(watched.service.acquire(f"learner-{number}"))
        assert len(watched.of(Degraded)) == 10
        assert all("at 127.0.0.1" in event.reason for event in watched.of(Degraded))


class TestFallback:
    @pytest.fixture
    def policy(self) -> str:
        return "fallback"

    @OUTAGES
    def test_it_excludes_during_the_outage_and_is_released_in_both(
        self, server: Server, watched: Watched, outage: Outage, standing_in: MemoryStore
    ) -> None:
        other = Watched(
            store=store_on(server), outage="fail", fallback=LockService(standing_in, outage="fail")
        ).service
        with userlock.scope(watched.service) as scope:
            with outage(server):
                tenure = scope.acquire("learner-1", heartbeat=True)
                with pytest.raises(userlock.LockTimeout):
                    other.acquire("learner-1", wait_timeout=0.1)
            took = wait_until(lambda: not tenure.degraded)
            assert took < 2
            assert not record_of(watched.service.store, "learner-1").free
            assert not record_of(standing_in, "learner-1").free
        tidy_up(watched.service)
        assert watched.service.store.read("learner-1") is None
        assert standing_in.read("learner-1") is None

    def test_without_it_two_have_the_lock(self, server: Server) -> None:
        """The negative control: two optimistic services."""
        one, two = Watched(store=store_on(server)), Watched(store=store_on(server))
        server.kill()
        assert one.service.acquire("learner-1").degraded
        assert two.service.acquire("learner-1").degraded
