"""Releases that nobody waits for: memcached's quiet commands, read past later."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator

import pytest

from tests.faults.proxy import Fault, FaultProxy
from tests.leases import record_of, taken
from tests.servers import Memcached
from userlock import LockService
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.lease import Released
from userlock.lock.leases import Leases
from userlock.stores import MemcacheStore, MemoryStore, ShardedMemcacheStore
from userlock.testing import make_claim


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def proxy(memcached: Memcached) -> Iterator[FaultProxy]:
    with FaultProxy(memcached.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultProxy, prefix: str) -> Iterator[MemcacheStore]:
    with contextlib.closing(MemcacheStore(proxy.address, prefix=prefix)) as store:
        store.read("warm-up")
        proxy.seen.clear()
        yield store


@pytest.fixture
def leases(store: MemcacheStore) -> Leases:
    return Leases(store, SYSTEM_CLOCK, quiet_release=True)


@pytest.fixture
def others(memcached: Memcached, prefix: str) -> Iterator[Leases]:
    """Somebody else's way to the same locks."""
    with contextlib.closing(MemcacheStore(memcached.address, prefix=prefix)) as store:
        yield Leases(store, SYSTEM_CLOCK)


def test_a_release_waits_for_no_answer(proxy: FaultProxy, leases: Leases, others: Leases) -> None:
    """One that never comes costs the release nothing. The next lock pays, and is granted."""
    lease = taken(leases.take(make_claim()))
    with proxy.fault(b"md ", Fault.DROP_REPLY):
        assert leases.release(lease) == Released()
        next_lease = taken(leases.take(make_claim("another")))
    assert record_of(others.store, "another").holder.token == next_lease.token
    assert others.look(lease.lock_id) is None


def test_locks_follow_one_another_on_one_connection(
    proxy: FaultProxy, store: MemcacheStore, leases: Leases
) -> None:
    """What the release answers must not be taken for the answer to the next command."""
    for number in range(20):
        claim = make_claim(f"learner-{number % 3}")
        lease = taken(leases.take(claim))
        assert leases.take(make_claim(claim.lock_id)) is None
        assert record_of(store, claim.lock_id).holder.token == lease.token
        assert leases.release(lease) == Released()
    assert len(store._connections._idle) == 1
    assert not any(packet.startswith(b"version") for packet in proxy.seen)


def test_whoever_waits_is_next(leases: Leases, others: Leases) -> None:
    """Who came meanwhile is not lost: the quiet command does not remove what has changed."""
    lease = taken(leases.take(make_claim()))
    waiter = make_claim()
    others.join(waiter)
    assert leases.release(lease) == Released()
    leases.look("another")  # once that is answered, so is the release
    record = others.look(lease.lock_id)
    assert record is not None
    assert (record.free, record.position_of(waiter.token)) == (True, 0)
    taken(others.claim(waiter, record, passing=False))


def test_the_next_owner_is_left_alone(leases: Leases, others: Leases) -> None:
    lease = taken(leases.take(make_claim()))
    theirs = record_of(others.store, lease.lock_id)
    others.store.remove(lease.lock_id, theirs.stored.version)
    successor = make_claim()
    next_lease = taken(others.take(successor))
    assert leases.release(lease) == Released(), "it is not found out"
    leases.look("another")
    record = record_of(others.store, lease.lock_id)
    assert (record.holder, record.free) == (successor.holder, False)
    assert others.release(next_lease) == Released()


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_restart_after_it_does_no_harm(own_memcached: Memcached, restarts: int) -> None:
    """The connection that an answer is owed on is dead then."""
    service = LockService.from_url(own_memcached.url(), quiet_release=True)
    for _ in range(restarts):
        service.release(service.acquire("learner-1"))
        own_memcached.restart()
    lease = service.acquire("learner-1")
    assert not lease.degraded
    service.release(lease)
    assert service.holder("learner-1") is None


def test_after_a_restart_the_next_owner_is_left_alone(own_memcached: Memcached) -> None:
    """Its number is the next owner's; the connection that it is from has gone."""
    mine, theirs = (Leases(MemcacheStore(own_memcached.address), SYSTEM_CLOCK) for _ in range(2))
    mine = Leases(mine.store, SYSTEM_CLOCK, quiet_release=True)
    lease = taken(mine.take(make_claim()))
    own_memcached.restart()
    successor = make_claim()
    taken(theirs.take(successor))
    mine.release(lease)
    mine.look("another")
    record = record_of(theirs.store, lease.lock_id)
    assert (record.holder, record.free) == (successor.holder, False)


@pytest.mark.parametrize("options", [{"protocol": "text"}, {"via_proxy": True}])
def test_where_that_is_not_safe_it_is_a_release_like_any(
    memcached: Memcached, prefix: str, options: dict[str, str]
) -> None:
    store = MemcacheStore(memcached.address, prefix=prefix, **options)  # type: ignore[arg-type]
    with contextlib.closing(store):
        version = store.create("ann", b"first", 60)
        assert version is not None
        assert not store.finish("ann", version, b"\n= 4f01")
        assert record_of(store, "ann").stored.record == b"first"
        leases = Leases(store, SYSTEM_CLOCK, quiet_release=True)
        assert leases.release(taken(leases.take(make_claim()))) == Released()
        assert leases.look("learner-1") is None


def test_nor_is_it_on_another_connection(store: MemcacheStore) -> None:
    version = store.create("ann", b"first", 60)
    store.close()
    assert not store.finish("ann", version, b"\n= 4f01")


def test_several_servers_can_do_it_as_well(memcached: Memcached, prefix: str) -> None:
    sharded = ShardedMemcacheStore([MemcacheStore(memcached.address, prefix=prefix)])
    with contextlib.closing(sharded):
        leases = Leases(sharded, SYSTEM_CLOCK, quiet_release=True)
        assert leases.release(taken(leases.take(make_claim()))) == Released()
        assert leases.look("learner-1") is None


def test_a_store_that_cannot_is_refused(store: MemcacheStore) -> None:
    with pytest.raises(ValueError, match="MemoryStore cannot release quietly"):
        LockService(MemoryStore(), quiet_release=True)


@pytest.mark.parametrize("quiet", [True, False])
def test_threads_exclude_each_other(memcached: Memcached, prefix: str, quiet: bool) -> None:
    store = MemcacheStore(memcached.address, prefix=prefix)
    service = LockService(store, quiet_release=quiet)
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(25):
            lease = service.acquire("learner-1")
            inside.append(1)
            most.append(len(inside))
            inside.pop()
            service.release(lease)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 150
    service.close()
