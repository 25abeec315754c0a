"""Quiet release: one packet and no answer waited for, and replies never get out of step."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.proxy import Fault, FaultProxy
from tests.faults.tidy import tidy_up
from tests.leases import record_of, taken
from tests.servers import Memcached
from tests.waiting import wait_until
from userlock import LockService
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.lease import Granted, Lost, Released
from userlock.lock.leases import Leases
from userlock.lock.store import LeaseStore
from userlock.stores import MemcacheStore, MemoryStore, ShardedMemcacheStore
from userlock.testing import make_claim


def quiet(store: LeaseStore) -> Leases:
    return Leases(store, SYSTEM_CLOCK, quiet_release=True)


@pytest.fixture
def mine(memcached: Memcached, prefix: str) -> Iterator[MemcacheStore]:
    store = MemcacheStore(memcached.address, prefix=prefix)
    yield store
    store.close()


class TestOneRoundTrip:
    @pytest.mark.parametrize(("option", "least", "most"), [(True, 0, 0.05), (False, 0.3, 1)])
    def test_no_answer_is_waited_for(
        self, own_memcached: Memcached, option: bool, least: float, most: float
    ) -> None:
        """A server that is stopped delays a release that waits; the negative control."""
        service = LockService.from_url(own_memcached.url(), quiet_release=option)
        lease = service.acquire("learner-1")
        with own_memcached.paused():
            started = time.monotonic()
            service.release(lease)
            took = time.monotonic() - started
        assert least <= took <= most

    def test_a_lock_is_two_packets_and_one_reply(self, proxy: FaultProxy, prefix: str) -> None:
        store = MemcacheStore(proxy.address, prefix=prefix)
        leases = quiet(store)
        store.read("warm-up")
        proxy.seen.clear()
        with proxy.fault(b"md ", Fault.DROP_REPLY):
            assert leases.release(taken(leases.take(make_claim()))) == Released()
            wait_until(lambda: len(proxy.seen) == 2)
        assert [packet[:3] for packet in proxy.seen] == [b"ms ", b"md "]
        store.close()

    @pytest.mark.parametrize("after", ["take", "extend"])
    def test_the_lock_is_free_afterwards(
        self, mine: MemcacheStore, direct: MemcacheStore, after: str
    ) -> None:
        leases = quiet(mine)
        lease = taken(leases.take(make_claim()))
        if after == "extend":
            outcome = leases.extend(lease, 30)
            assert isinstance(outcome, Granted)
            lease = outcome.lease
        assert leases.release(lease) == Released()
        wait_until(lambda: direct.read(lease.lock_id) is None)

    def test_so_it_is_for_the_same_process_at_once(self, mine: MemcacheStore) -> None:
        leases = quiet(mine)
        for _ in range(200):
            assert leases.release(taken(leases.take(make_claim()))) == Released()

    def test_a_sharded_store_can_too(self, memcached: Memcached, prefix: str) -> None:
        store = ShardedMemcacheStore([MemcacheStore(memcached.address, prefix=prefix)])
        leases = quiet(store)
        for _ in range(20):
            assert leases.release(taken(leases.take(make_claim()))) == Released()
        store.close()


class TestWaiters:
    def test_whoever_has_come_to_wait_is_next(
        self, mine: MemcacheStore, theirs: Leases, direct: MemcacheStore
    ) -> None:
        leases = quiet(mine)
        lease = taken(leases.take(make_claim()))
        claim = make_claim()
        theirs.join(claim)
        assert leases.release(lease) == Released()
        wait_until(lambda: record_of(direct, lease.lock_id).free)
        record = record_of(direct, lease.lock_id)
        assert record.position_of(claim.token) == 0
        assert theirs.claim(claim, record, passing=False) is not None

    def test_a_crowd_passes_through(self, memcached: Memcached, prefix: str) -> None:
        """Eight threads, one lock, one counter that only the lock protects."""
        service = LockService(MemcacheStore(memcached.address, prefix=prefix), quiet_release=True)
        counter = 0
        most = 0.0

        def work() -> None:
            nonlocal counter, most
            for _ in range(25):
                started = time.monotonic()
                lease = service.acquire("learner-1")
                most = max(most, time.monotonic() - started)
                seen = counter
                time.sleep(0)
                counter = seen + 1
                service.release(lease)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counter == 200
        assert most < 5
        service.close()

    def test_another_who_has_the_lock_by_now_is_left_alone(
        self, mine: MemcacheStore, theirs: Leases, direct: MemcacheStore
    ) -> None:
        leases = quiet(mine)
        lease = taken(leases.take(make_claim()))
        stored = direct.read(lease.lock_id)
        assert stored is not None
        assert direct.remove(lease.lock_id, stored.version), "evicted"
        next_lease = taken(theirs.take(make_claim()))
        assert leases.release(lease) == Released(), "whether it was ours is not found out"
        mine.read(lease.lock_id)  # so the server has carried it out
        record = record_of(direct, lease.lock_id)
        assert (record.holder.token, record.free) == (next_lease.token, False)
        assert theirs.release(next_lease) == Released()

    def test_without_the_number_the_next_owners_would_be_deleted(
        self, mine: MemcacheStore, theirs: Leases, direct: MemcacheStore
    ) -> None:
        """The negative control: what a quiet delete by key alone would do."""
        lease = taken(quiet(mine).take(make_claim()))
        stored = direct.read(lease.lock_id)
        assert stored is not None
        assert direct.remove(lease.lock_id, stored.version)
        taken(theirs.take(make_claim()))
        connection = mine._connections.take()
        connection.send_unanswered(b"md %b q\r\n" % lease.version.key)  # type: ignore[attr-defined]
        mine._connections.give_back(connection)
        assert mine.read(lease.lock_id) is None


class TestInStep:
    """What the quiet commands answer after all is read before the next reply."""

    @pytest.fixture
    def leases(self, mine: MemcacheStore) -> Leases:
        """With one connection, which every command goes over."""
        leases = quiet(mine)
        mine.read("warm-up")
        return leases

    @pytest.fixture
    def refused(self, leases: Leases, theirs: Leases, mine: MemcacheStore) -> None:
        """A quiet release whose delete was refused: its answer is on its way."""
        lease = taken(leases.take(make_claim("refused")))
        theirs.join(make_claim("refused"))
        leases.release(lease)
        (connection,) = mine._connections._idle
        assert connection._owed

    @pytest.mark.usefixtures("refused")
    def test_with_a_create_that_is_granted(self, leases: Leases) -> None:
        assert leases.take(make_claim()) is not None

    @pytest.mark.usefixtures("refused")
    def test_with_a_create_that_is_not(self, leases: Leases, theirs: Leases) -> None:
        taken(theirs.take(make_claim()))
        assert leases.take(make_claim()) is None

    @pytest.mark.usefixtures("refused")
    def test_with_a_read(self, leases: Leases, theirs: Leases) -> None:
        claim = make_claim()
        taken(theirs.take(claim))
        record = leases.look(claim.lock_id)
        assert record is not None
        assert record.holder.token == claim.token

    @pytest.mark.usefixtures("refused")
    def test_with_an_append(self, leases: Leases, theirs: Leases) -> None:
        taken(theirs.take(make_claim()))
        claim = make_claim()
        record = leases.join(claim)
        assert record is not None
        assert record.position_of(claim.token) == 0
        assert leases.join(make_claim("nobody has it")) is None

    @pytest.mark.parametrize("ours", [True, False])
    def test_with_a_swap_and_a_remove(
        self, leases: Leases, theirs: Leases, mine: MemcacheStore, ours: bool
    ) -> None:
        lease = taken(leases.take(make_claim()))
        if not ours:
            seen = theirs.look(lease.lock_id)
            assert seen is not None
            assert theirs.break_(lease.lock_id, seen, "Jo")
        for verb in ("extend", "release"):
            before = taken(leases.take(make_claim(verb)))
            theirs.join(make_claim(verb))
            leases.release(before)
            if verb == "extend":
                outcome = leases.extend(lease, 30)
                assert outcome == (outcome if ours else Lost("broken", None, "Jo"))
                lease = outcome.lease if isinstance(outcome, Granted) else lease
            else:
                assert mine.remove(lease.lock_id, lease.version) is ours

    @pytest.mark.usefixtures("refused")
    def test_with_another_quiet_release(self, leases: Leases, mine: MemcacheStore) -> None:
        for number in range(5):
            leases.release(taken(leases.take(make_claim(f"learner-{number}"))))
        assert mine.read("learner-4") is None
        assert len(mine._connections._idle) == 1

    def test_in_any_order(
        self, leases: Leases, theirs: Leases, mine: MemcacheStore, direct: MemcacheStore
    ) -> None:
        """A thousand commands over one connection, each checked against what must be."""
        dice = random.Random(7)
        for number in range(250):
            lock_id = f"learner-{number}"
            claim = make_claim(lock_id)
            contended = dice.random() < 0.5
            lease = taken(leases.take(claim))
            if dice.random() < 0.3:
                record = leases.look(lock_id)
                assert record is not None
                assert record.holder.token == claim.token
            if dice.random() < 0.3:
                outcome = leases.extend(lease, 30)
                assert isinstance(outcome, Granted)
                lease = outcome.lease
            if contended:
                theirs.join(make_claim(lock_id))
            assert leases.release(lease) == Released()
            if dice.random() < 0.5:
                record = leases.look(lock_id)
                assert (record is not None and record.free) is contended
            elif dice.random() < 0.5:
                assert (leases.take(make_claim(lock_id)) is None) is contended
            (connection,) = mine._connections._idle
            assert connection._buffer == b""


class TestTrouble:
    @pytest.mark.parametrize("then", ["restart", "kill"])
    def test_a_server_that_dies_before_the_next_command(
        self, own_memcached: Memcached, then: str
    ) -> None:
        service = LockService.from_url(own_memcached.url(), quiet_release=True)
        service.release(service.acquire("learner-1"))
        getattr(own_memcached, then)()
        lease = service.acquire("learner-1")
        assert lease.degraded is (then == "kill")
        service.release(lease)

    def test_a_restart_before_the_release_leaves_the_next_owner_alone(
        self, own_memcached: Memcached
    ) -> None:
        """CAS numbers begin again at 1; the end of the connection stands behind an answer."""
        store = MemcacheStore(own_memcached.address, prefix="test")
        leases = quiet(store)
        lease = taken(leases.take(make_claim()))
        leases.release(taken(leases.take(make_claim("another"))))
        (connection,) = store._connections._idle
        assert connection._owed
        own_memcached.restart()
        other = Leases(MemcacheStore(own_memcached.address, prefix="test"), SYSTEM_CLOCK)
        next_lease = taken(other.take(make_claim()))
        assert lease.version.cas == next_lease.version.cas  # type: ignore[attr-defined]
        outcome = leases.release(lease)
        assert isinstance(outcome, Lost)
        assert outcome.how == "taken"
        record = record_of(other.store, lease.lock_id)
        assert (record.holder.token, record.free) == (next_lease.token, False)

    def test_a_connection_that_is_cut_within(self, proxy: FaultProxy, prefix: str) -> None:
        """Nothing tells the releaser; the lock ends with its lease, and the next one is fine."""
        store = MemcacheStore(proxy.address, prefix=prefix)
        service = LockService(store, quiet_release=True)
        lease = service.acquire("learner-1", lock_timeout=1)
        with proxy.fault(b"md ", Fault.CUT_BEFORE):
            service.release(lease)
            wait_until(lambda: b"md " not in proxy.faults)
        assert service.holder("learner-1") is not None
        again = service.acquire("learner-1", wait_timeout=10)
        assert not again.degraded
        service.release(again)
        store.close()

    def test_a_release_that_cannot_be_sent_is_made_up_for(self, own_memcached: Memcached) -> None:
        """It hangs; what was not sent is sent when it answers."""
        service = LockService.from_url(own_memcached.url(), quiet_release=True)
        lease = service.acquire("learner-1")
        service.leases.store.close()
        with own_memcached.paused():
            service.release(lease)  # on a connection that cannot be made
        tidy_up(service)
        assert service.holder("learner-1") is None

    def test_on_another_connection_than_it_was_taken_it_is_not_quiet(
        self, mine: MemcacheStore, direct: MemcacheStore
    ) -> None:
        """The number means nothing there, so it looks first: more trips, the same end."""
        leases = quiet(mine)
        lease = taken(leases.take(make_claim()))
        mine.close()
        assert leases.release(lease) == Released()
        assert direct.read(lease.lock_id) is None

    def test_nor_in_the_text_protocol(
        self, memcached: Memcached, prefix: str, direct: MemcacheStore
    ) -> None:
        store = MemcacheStore(memcached.address, prefix=prefix, protocol="text")
        leases = quiet(store)
        lease = taken(leases.take(make_claim()))
        assert leases.release(lease) == Released()
        assert direct.read(lease.lock_id) is None
        store.close()


class TestRefusal:
    @pytest.mark.parametrize(
        ("url", "name"),
        [("memory://", "MemoryStore"), ("redis://127.0.0.1:1/0", "RedisStore")],
    )
    def test_other_stores_cannot(self, url: str, name: str) -> None:
        with pytest.raises(ValueError, match=f"{name} cannot release quietly; memcached can"):
            LockService.from_url(url, quiet_release=True)

    def test_without_the_option_nothing_changes(self) -> None:
        assert LockService(MemoryStore()).leases._quiet_store is None
