"""memcached killed, restarted, stopped, or with foreign values.

No call takes longer than its bound, and losses are reported with their true reason.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from typing import Any

import pytest
from pymemcache.client.base import Client

import userlock
from tests.faults.tidy import tidy_up
from tests.leases import record_of, taken
from tests.servers import MEMCACHED_LATE_SECONDS, Memcached
from tests.waiting import assert_within, wait_until
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.lease import Lost, Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.renewal import RenewalThread
from userlock.lock.store import StoreUnavailable
from userlock.stores import MemcacheStore, ShardedMemcacheStore
from userlock.testing import make_claim


def leases_on(address: str, prefix: str = "test") -> LeaseProtocol:
    """Return the leases of a process of its own."""
    return LeaseProtocol(MemcacheStore(address, prefix=prefix), SYSTEM_CLOCK)


class TestRestart:
    def test_idle_connections_are_renewed_without_a_degraded_lease(
        self, own_memcached: Memcached
    ) -> None:
        service = userlock.LockService.from_url(own_memcached.url())
        service.release(service.acquire("learner-1"))
        own_memcached.restart()
        lease = service.acquire("learner-1")
        assert not lease.degraded
        service.release(lease)

    def test_a_release_after_a_restart_leaves_the_next_owner_alone(
        self, own_memcached: Memcached
    ) -> None:
        """CAS numbers restart: the old lease's number is the next owner's."""
        mine, theirs = leases_on(own_memcached.address), leases_on(own_memcached.address)
        lease = taken(mine.take(make_claim()))
        own_memcached.restart()
        successor = make_claim()
        next_lease = taken(theirs.take(successor))
        assert lease.version.cas == next_lease.version.cas  # type: ignore[attr-defined]
        assert mine.release(lease) == Lost("taken", successor.holder)
        assert mine.extend(lease, 60) == Lost("taken", successor.holder)
        record = record_of(theirs.store, lease.lock_id)
        assert (record.holder, record.free) == (successor.holder, False)
        assert theirs.release(next_lease) == Released()

    @pytest.mark.parametrize("idle", [True, False])
    def test_by_its_number_alone_it_would_delete_the_next_owners(
        self, own_memcached: Memcached, monkeypatch: pytest.MonkeyPatch, idle: bool
    ) -> None:
        """The negative control, with and without a dead idle connection."""
        mine, theirs = leases_on(own_memcached.address), leases_on(own_memcached.address)
        lease = taken(mine.take(make_claim()))
        own_memcached.restart()
        taken(theirs.take(make_claim()))
        if not idle:
            mine.store.close()
        monkeypatch.setattr(MemcacheStore, "_trusts", lambda *_: True)
        assert mine.release(lease) == Released()
        assert theirs.look(lease.lock_id) is None

    def test_a_lease_that_the_server_forgot_is_reported_lost(
        self, own_memcached: Memcached
    ) -> None:
        leases = leases_on(own_memcached.address)
        lease = taken(leases.take(make_claim()))
        own_memcached.restart()
        assert leases.extend(lease, 10) == Lost("forgotten")
        assert leases.release(lease) == Lost("forgotten")

    def test_waiters_rejoin_the_queue(self, own_memcached: Memcached) -> None:
        """In their order, as far as they announced it."""
        leases = leases_on(own_memcached.address)
        taken(leases.take(make_claim()))
        first, second = make_claim(), make_claim()
        seen = leases.join(first)
        leases.join(second)
        own_memcached.restart()
        lease = taken(leases.begin(first, seen))
        record = leases.join(second, again=True)
        assert record is not None
        assert record.position_of(second.token) == 0
        assert leases.release(lease) == Released()
        assert leases.look(lease.lock_id) is not None, "there is a waiter"


class TestOutage:
    def test_a_killed_server_costs_nearly_nothing(self, own_memcached: Memcached) -> None:
        service = userlock.LockService.from_url(own_memcached.url())
        service.release(service.acquire("learner-1"))
        own_memcached.kill()

        def fifty_locks() -> float:
            started = time.monotonic()
            for number in range(50):
                lease = service.acquire(f"learner-{number}")
                assert lease.degraded
                service.release(lease)
            return time.monotonic() - started

        assert_within(0.5, fifty_locks)
        own_memcached.start()
        assert not service.acquire("learner-1").degraded

    def test_a_stopped_server_costs_one_timeout(self, own_memcached: Memcached) -> None:
        service = userlock.LockService.from_url(own_memcached.url())
        service.release(service.acquire("learner-1"))
        with own_memcached.paused():
            started = time.monotonic()
            assert service.acquire("learner-1").degraded
            first = time.monotonic() - started

            def fifty_locks() -> float:
                started = time.monotonic()
                for number in range(50):
                    assert service.acquire(f"learner-{number}").degraded
                return time.monotonic() - started

            assert_within(0.2, fifty_locks)
        assert first < 1.0, "0.1 s, and 0.3 s for the second look"

    def test_late_commands_of_a_stopped_server_are_cleaned_up(
        self, own_memcached: Memcached
    ) -> None:
        """Otherwise the learner would be locked out for a whole lease without a holder."""
        service = userlock.LockService.from_url(own_memcached.url())
        other = MemcacheStore(own_memcached.address, prefix="test")
        service.release(service.acquire("learner-1"))
        with own_memcached.paused():
            lease = service.acquire("learner-1")
            assert lease.degraded
            service.release(lease)
        deadline = time.monotonic() + 5
        while other.read("learner-1") is None:
            # The command waits in the server's socket and is soon executed.
            assert time.monotonic() < deadline
        tidy_up(service)
        assert other.read("learner-1") is None

    def test_a_process_that_asks_for_nothing_more_tidies_up_too(
        self, own_memcached: Memcached
    ) -> None:
        """Without the renewal thread, which one of these does not have, it does not."""
        service = userlock.LockService.from_url(own_memcached.url())
        control = userlock.LockService(
            MemcacheStore(own_memcached.address, prefix="control"),
            renewals=RenewalThread(SYSTEM_CLOCK, threaded=False),
        )
        others, controls = (
            MemcacheStore(own_memcached.address, prefix=prefix) for prefix in ("test", "control")
        )
        for each in (service, control):
            each.release(each.acquire("learner-1"))
        with own_memcached.paused():
            for each in (service, control):
                each.release(each.acquire("learner-1"))
        wait_until(lambda: controls.read("learner-1") is not None)
        assert wait_until(lambda: others.read("learner-1") is None) < 2.5
        assert controls.read("learner-1") is not None

    def test_a_server_of_several_that_is_down_takes_no_others_along(
        self, own_memcached: Memcached, memcached: Memcached, prefix: str
    ) -> None:
        """Its locks are degraded, and cost nothing after the first; the others are unaffected."""
        servers = [
            MemcacheStore(server.address, prefix=prefix) for server in (own_memcached, memcached)
        ]
        store = ShardedMemcacheStore(servers)
        service = userlock.LockService(store)
        learners = [f"learner-{number}" for number in range(40)]
        with own_memcached.paused():
            started = time.monotonic()
            degraded = {each for each in learners if service.acquire(each).degraded}
            assert time.monotonic() - started < 1
        assert degraded == {each for each in learners if store.shard_of(each) == 0}
        assert 0 < len(degraded) < 40

    def test_an_address_that_does_not_resolve_is_not_a_hang(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        service = userlock.LockService.from_url("memcache://no-such-host.invalid:11211")
        started = time.monotonic()
        lease = service.acquire("learner-1")
        assert time.monotonic() - started < 1
        assert lease.degraded
        assert "no-such-host.invalid" in caplog.text
        failing = userlock.LockService.from_url(
            "memcache://no-such-host.invalid:11211", outage="fail"
        )
        with pytest.raises(userlock.LockServiceUnavailable, match=r"no-such-host\.invalid"):
            failing.acquire("learner-1")

    def test_a_look_up_that_hangs_is_not_a_hang(self, monkeypatch: pytest.MonkeyPatch) -> None:
        release = threading.Event()

        def hang(*_: object, **__: object) -> list[Any]:
            release.wait()
            return []

        monkeypatch.setattr("userlock.stores.address.socket.getaddrinfo", hang)
        leases = leases_on("slow-host.invalid:11211")
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match="look-up") as caught:
            leases.take(make_claim())
        release.set()
        assert time.monotonic() - started < 0.5
        assert not caught.value.sent

    def test_names_are_looked_up(self, memcached: Memcached, prefix: str) -> None:
        taken(leases_on(f"localhost:{memcached.port}", prefix).take(make_claim()))


class TestForeignValues:
    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b"{}",
            b"[]",
            b"null",
            b"\xff\xfe",
            b"MN\r\nHD c1\r\n",
            b"[" * 10_000,
            b"x" * 900_000,
        ],
    )
    def test_foreign_values_under_our_key_neither_crash_nor_grant(
        self, memcached: Memcached, prefix: str, value: bytes
    ) -> None:
        with contextlib.closing(Client(memcached.address)) as client:
            client.set(f"{prefix}:lock=learner-1", value, noreply=False)
        leases = leases_on(memcached.address, prefix)
        assert leases.take(make_claim()) is None
        seen = leases.look("learner-1")
        assert seen is not None
        assert not seen.free
        assert "did not write" in seen.holder.describe()
        service = userlock.LockService(leases.store)
        with pytest.raises(userlock.LockTimeout, match="did not write"):
            service.acquire("learner-1", wait_timeout=0.05)
        assert service.break_lock("learner-1") is not None
        service.release(service.acquire("learner-1", wait_timeout=0))

    @pytest.mark.parametrize("protocol", ["meta", "text"])
    def test_a_record_that_nothing_can_be_added_to_is_not_a_hang(
        self, memcached: Memcached, prefix: str, protocol: str
    ) -> None:
        """No waiter can be queued there: items end at a megabyte, or at the limit of the memory."""
        with contextlib.closing(Client(memcached.address)) as client:
            key = f"{prefix}:lock=learner-1"
            client.set(key, b"x" * 1_000_000, noreply=False)
            while client.append(key, b"x" * 50, noreply=False):
                pass
        store = MemcacheStore(memcached.address, prefix=prefix, protocol=protocol)
        service = userlock.LockService(store)
        started = time.monotonic()
        with pytest.raises(userlock.LockTimeout):  # it is held; the store does answer
            service.acquire("learner-1", wait_timeout=0.2)
        assert time.monotonic() - started < 1


def _hold_and_stall(address: str, prefix: str, acquired: Any) -> None:
    store = MemcacheStore(address, prefix=prefix)
    service = userlock.LockService(store)
    service.acquire("learner-1", lock_timeout=2)
    acquired.set()
    threading.Event().wait()


def test_a_killed_holder_keeps_the_lock_for_its_lease_and_no_longer(
    memcached: Memcached, prefix: str
) -> None:
    spawn = multiprocessing.get_context("spawn")
    acquired = spawn.Event()
    process = spawn.Process(target=_hold_and_stall, args=(memcached.address, prefix, acquired))
    process.start()
    assert acquired.wait(20)
    taken = time.monotonic()
    process.kill()
    process.join()
    service = userlock.LockService(MemcacheStore(memcached.address, prefix=prefix))
    with pytest.raises(userlock.LockTimeout):
        service.acquire("learner-1", wait_timeout=1)
    lease = service.acquire("learner-1", wait_timeout=10)
    waited = time.monotonic() - taken
    service.release(lease)
    assert 2 - 0.1 <= waited <= 2 + MEMCACHED_LATE_SECONDS
