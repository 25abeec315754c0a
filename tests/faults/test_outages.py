"""memcached killed, restarted, stopped, or storing what others wrote.

No call takes longer than its bound, and what was lost is reported as what it was.
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
from tests.servers import Memcached
from userlock.lock.lease import Free, Held, Lost, Released, Unavailable
from userlock.stores import MemcacheStore
from userlock.testing import granted, make_claim


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
        """CAS numbers begin again: the old lease's number is the next owner's."""
        mine = MemcacheStore(own_memcached.address)
        theirs = MemcacheStore(own_memcached.address)
        lease = granted(mine.add(make_claim()))
        own_memcached.restart()
        successor = make_claim()
        next_lease = granted(theirs.add(successor))
        assert lease.proof.cas == next_lease.proof.cas  # type: ignore[attr-defined]
        assert mine.release(lease) == Lost(successor.holder)
        assert theirs.read(lease.lock_id) == Held(successor.holder)

    def test_by_its_number_alone_it_would_delete_the_next_owners(
        self, own_memcached: Memcached, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        mine = MemcacheStore(own_memcached.address)
        theirs = MemcacheStore(own_memcached.address)
        lease = granted(mine.add(make_claim()))
        own_memcached.restart()
        granted(theirs.add(make_claim()))
        mine.close()
        monkeypatch.setattr(
            "userlock.stores.memcache.connections.Connection.older_than", lambda *_: True
        )
        assert mine.release(lease) == Released()
        assert theirs.read(lease.lock_id) == Free()

    def test_a_lease_that_the_server_forgot_is_reported_lost(
        self, own_memcached: Memcached
    ) -> None:
        store = MemcacheStore(own_memcached.address)
        lease = granted(store.add(make_claim()))
        own_memcached.restart()
        assert store.release(lease) == Lost(None)
        assert store.extend(lease, 10) == Lost(None)


class TestOutage:
    def test_a_killed_server_costs_nearly_nothing(self, own_memcached: Memcached) -> None:
        service = userlock.LockService.from_url(own_memcached.url())
        service.release(service.acquire("learner-1"))
        own_memcached.kill()
        started = time.monotonic()
        for number in range(50):
            lease = service.acquire(f"learner-{number}")
            assert lease.degraded
            service.release(lease)
        assert time.monotonic() - started < 0.5
        own_memcached.start()
        assert not service.acquire("learner-1").degraded

    def test_a_stopped_server_costs_one_timeout(self, own_memcached: Memcached) -> None:
        service = userlock.LockService.from_url(own_memcached.url())
        service.release(service.acquire("learner-1"))
        with own_memcached.paused():
            started = time.monotonic()
            assert service.acquire("learner-1").degraded
            first = time.monotonic() - started
            started = time.monotonic()
            for number in range(50):
                assert service.acquire(f"learner-{number}").degraded
            rest = time.monotonic() - started
        assert first < 0.6
        assert rest < 0.2

    def test_what_a_stopped_server_carries_out_later_is_tidied_up(
        self, own_memcached: Memcached
    ) -> None:
        """Otherwise the learner would be locked out for a whole lease by nobody."""
        service = userlock.LockService.from_url(own_memcached.url())
        other = MemcacheStore(own_memcached.address, prefix="test")
        service.release(service.acquire("learner-1"))
        with own_memcached.paused():
            lease = service.acquire("learner-1")
            assert lease.degraded
            service.release(lease)
        deadline = time.monotonic() + 5
        while isinstance(other.read("learner-1"), Free | Unavailable):
            # The command waits in the server's socket; it is carried out soon.
            assert time.monotonic() < deadline
        tidy_up(service)
        assert other.read("learner-1") == Free()

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

        monkeypatch.setattr("userlock.stores.memcache.connections.socket.getaddrinfo", hang)
        store = MemcacheStore("slow-host.invalid:11211")
        started = time.monotonic()
        outcome = store.add(make_claim())
        release.set()
        assert time.monotonic() - started < 0.5
        assert isinstance(outcome, Unavailable)
        assert "look-up" in outcome.reason

    def test_names_are_looked_up(self, memcached: Memcached, prefix: str) -> None:
        store = MemcacheStore(f"localhost:{memcached.port}", prefix=prefix)
        granted(store.add(make_claim()))


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
    def test_what_others_store_under_our_key_neither_crashes_nor_grants(
        self, memcached: Memcached, prefix: str, value: bytes
    ) -> None:
        with contextlib.closing(Client(memcached.address)) as client:
            client.set(f"{prefix}:lock=learner-1", value, noreply=False)
        store = MemcacheStore(memcached.address, prefix=prefix)
        assert store.add(make_claim()) == Held(None)
        seen = store.read("learner-1")
        assert isinstance(seen, Held)
        assert seen.holder is not None
        assert "did not write" in seen.holder.describe()
        service = userlock.LockService(store)
        with pytest.raises(userlock.LockTimeout, match="did not write"):
            service.acquire("learner-1", wait_timeout=0.05)


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
    assert 2 - 0.1 <= waited <= 2 + 2.1
