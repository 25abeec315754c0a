"""Waiters of one process: they share readings, and hand the lock over without a request."""

from __future__ import annotations

import functools
import threading
from random import Random

import pytest

import userlock
from tests.leases import record_of
from tests.simulation.watch import Watch
from tests.simulation.world import World
from userlock import LockService, LockTimeout
from userlock.bell import Bell
from userlock.errors import LockNotHeld
from userlock.events import Acquired, Event, LeaseLost, Listeners, Released
from userlock.lock import local_waiters
from userlock.lock.lease import Lease, Lost
from userlock.lock.local_waiters import LocalWaiters
from userlock.lock.record import Record
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim


def writes(store: MemoryStore) -> int:
    return sum(number for verb, number in store.asked.items() if verb != "read")


class TestHandOver:
    def test_it_takes_no_request(
        self, service: LockService, store: MemoryStore, clock: ManualClock, events: list[Event]
    ) -> None:
        holder = service.acquire("ann", request="POST /first")
        at_release: list[int] = []

        def release() -> None:
            before = writes(store), store.asked["read"]
            service.release(holder)
            at_release.append(writes(store) - before[0] + store.asked["read"] - before[1])

        clock.after(1.0, release)
        lease = service.acquire("ann")
        assert at_release == [0]
        assert store.asked["swap"] == 0
        assert lease.token == holder.token
        assert lease.deadline == holder.deadline
        acquired = [event for event in events if isinstance(event, Acquired)][-1]
        assert acquired.waited_seconds == pytest.approx(1.0)
        assert "POST /first" in acquired.blocked_by
        service.release(lease)
        assert store.read("ann") is None, "the position in the queue has ended too"
        assert [each.outcome for each in events if isinstance(each, Released)] == ["released"] * 2
        assert [each.held_seconds for each in events if isinstance(each, Released)][1] == 0

    def test_from_another_process_the_lock_is_taken_over(
        self, service: LockService, elsewhere: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        """The negative control."""
        holder = service.acquire("ann")
        clock.after(1.0, lambda: elsewhere.release(holder))
        assert service.acquire("ann").token != holder.token
        assert store.asked["swap"] == 1

    def test_one_after_another(self, clock: ManualClock, store: MemoryStore) -> None:
        with World(clock, Watch(store, clock)).running() as world:
            process = world.process("host/web")
            order: list[tuple[int, str]] = []

            def work(number: int) -> None:
                process.clock.sleep(number / 1000)
                lease = process.service.acquire("ann", wait_timeout=5)
                order.append((number, lease.token))
                process.clock.sleep(0.02)
                process.service.release(lease)

            actors = [
                world.spawn(process, f"request {number}", functools.partial(work, number))
                for number in range(6)
            ]
            world.pass_time(5, until=lambda: all(actor.finished for actor in actors))
            assert [number for number, _ in order] == list(range(6))
            assert len({token for _, token in order}) == 1
            assert store.asked["swap"] == 0
            assert store.read("ann") is None
            assert world.watch.violations == []

    def test_a_waiter_of_another_process_keeps_its_turn(
        self, clock: ManualClock, store: MemoryStore
    ) -> None:
        with World(clock, Watch(store, clock)).running() as world:
            web, other = world.process("host/web"), world.process("other/web")
            order: list[str] = []

            def work(name: str, begins: float) -> None:
                process = other if name == "b" else web
                process.clock.sleep(begins)
                lease = process.service.acquire("ann", wait_timeout=5)
                order.append(name)
                process.clock.sleep(0.05)
                process.service.release(lease)

            actors = [
                world.spawn(
                    other if name == "b" else web, name, functools.partial(work, name, number / 100)
                )
                for number, name in enumerate("abcd")
            ]
            world.pass_time(5, until=lambda: all(actor.finished for actor in actors))
            assert order == ["a", "b", "c", "d"]
            assert world.watch.violations == []

    @pytest.mark.parametrize(
        ("asked", "why"),
        [
            ({"priority": "batch", "lock_timeout": 60}, "interactive requests may come before it"),
            ({"lock_timeout": 30}, "a crash would keep others out for longer than it asked for"),
            ({"lock_timeout": 90}, "it would end before it asked for"),
        ],
    )
    def test_not_to_every_waiter(
        self,
        service: LockService,
        store: MemoryStore,
        clock: ManualClock,
        asked: dict[str, float],
        why: str,
    ) -> None:
        holder = service.acquire("ann")
        clock.after(1.0, lambda: service.release(holder))
        lease = service.acquire("ann", **asked)  # type: ignore[arg-type]
        assert lease.token != holder.token, why
        assert lease.ttl_seconds == asked["lock_timeout"]

    def test_a_lease_of_long_ago_is_not_handed_over(
        self, service: LockService, clock: ManualClock
    ) -> None:
        holder = service.acquire("ann")
        clock.after(5.0, lambda: service.release(holder))
        assert service.acquire("ann").token != holder.token

    def test_a_thread_that_is_stopped_gives_it_back(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        holder = service.acquire("ann")

        def release_and_stop() -> None:
            service.release(holder)
            raise KeyboardInterrupt

        clock.after(1.0, release_and_stop)
        with pytest.raises(KeyboardInterrupt):
            service.acquire("ann")
        assert store.read("ann") is None

    def test_a_second_release_does_not_end_the_next_hold(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        holder = service.acquire("ann")
        clock.after(0.5, lambda: service.release(holder))
        lease = service.acquire("ann")
        service.release(holder)
        assert not record_of(store, "ann").free
        service.release(lease)
        assert store.read("ann") is None
        service.release(lease)

    def test_the_lease_of_before_has_no_meaning_any_more(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        """It has the token of the next holder, whose lease it must not change."""
        holder = service.acquire("ann")
        clock.after(0.5, lambda: service.release(holder))
        service.acquire("ann")
        before = store.read("ann")
        assert service.extend(holder, 1) == Lost("handed over")
        assert service.extend_many([(holder, 1)]) == [Lost("handed over")]
        assert service.fence(holder) == Lost("handed over")
        assert store.read("ann") == before

    @pytest.mark.parametrize("in_flight", [True, False])
    def test_not_while_a_change_of_the_lease_is_in_flight(
        self, service: LockService, clock: ManualClock, in_flight: bool
    ) -> None:
        """It would arrive late, and shorten the next one's lease; the control has none.

        A                          store                B (same process)
        extend by 4 s ···········
        release: B's ─────────────────────────────────▶ has the lock
                                                        extend by 60 s
                                   ends in 4 s ◀······· (A's arrives)
        """
        with userlock.scope(service) as scope:
            lock = scope.acquire("ann")
            token = lock.lease.token

            def release() -> None:
                if in_flight:
                    with lock.extending:
                        scope.release("ann")
                else:
                    scope.release("ann")

            clock.after(0.5, release)
            assert (service.acquire("ann").token == token) is not in_flight

    def test_the_next_holder_does_not_wait(self, service: LockService, clock: ManualClock) -> None:
        holder = service.acquire("ann")
        clock.after(0.5, lambda: service.release(holder))
        service.acquire("ann")
        assert service.waiters("ann") == []

    def test_only_so_often(self, service: LockService, store: MemoryStore) -> None:
        """Others take each of them for a waiter, and the record has room for so many."""
        lease = service.acquire("ann")
        for _ in range(local_waiters._MOST_SERVED):
            lease = lease._replace(served=(*lease.served, "another"))
        known = _Known(ManualClock())
        known.lease = known.lease._replace(served=lease.served)
        assert not known.hand_over()
        known.lease = known.lease._replace(served=lease.served[1:])
        assert known.hand_over()

    def test_leases_that_run_out_are_forgotten(
        self, service: LockService, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local_waiters, "_MOST_KEPT", 3)
        for number in range(20):
            holder = service.acquire(f"learner-{number}")
            clock.after(0.5, functools.partial(service.release, holder))
            service.acquire(f"learner-{number}")
            clock.advance(100)
        assert len(service.local_waiters._handed_over) <= 4

    def test_a_waiter_that_times_out_gets_none(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        holder = service.acquire("ann")
        with pytest.raises(LockTimeout):
            service.acquire("ann", wait_timeout=0.5)
        service.release(holder)
        assert store.read("ann") is None

    def test_its_record_was_lost_meanwhile(
        self, service: LockService, store: MemoryStore, clock: ManualClock, events: list[Event]
    ) -> None:
        """Another process has taken the lock. The one that it was handed to finds out."""
        holder = service.acquire("ann")
        theirs = make_claim("ann")

        def lose_and_release() -> None:
            store.evict("ann")
            assert store.create("ann", theirs.record, 60) is not None
            service.release(holder)

        clock.after(0.5, lose_and_release)
        lease = service.acquire("ann")
        assert lease.token == holder.token
        service.release(lease)
        assert any(isinstance(event, LeaseLost) for event in events)
        assert record_of(store, "ann").holder.token == theirs.token
        assert not record_of(store, "ann").free

    def test_it_can_be_broken(self, service: LockService, clock: ManualClock) -> None:
        with userlock.scope(service) as scope:
            holder = service.acquire("ann")
            clock.after(0.5, lambda: service.release(holder))
            lock = scope.acquire("ann")
            assert service.break_lock("ann", by="op") is not None
            with pytest.raises(LockNotHeld, match="broken by op"):
                lock.extend(60)

    def test_it_can_be_extended(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        with userlock.scope(service) as scope:
            holder = service.acquire("ann")
            clock.after(0.5, lambda: service.release(holder))
            lock = scope.acquire("ann")
            lock.extend(120)
            clock.advance(100)
            assert record_of(store, "ann").holder.token == holder.token
            assert not record_of(store, "ann").free
        assert store.read("ann") is None

    def test_it_does_not_yield_to_itself(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        with userlock.scope(service) as scope:
            holder = service.acquire("ann")
            clock.after(0.5, lambda: service.release(holder))
            lock = scope.acquire("ann")
            assert record_of(store, "ann").interactive_waits()
            assert lock.yield_to_waiters() is lock

    def test_real_threads(self) -> None:
        service = LockService(MemoryStore(), listeners=Listeners(), random=Random(1))
        account = {"balance": 0}
        tokens: set[str] = set()

        def work() -> None:
            for _ in range(50):
                lease = service.acquire("ann", wait_timeout=30)
                tokens.add(lease.token)
                before = account["balance"]
                threading.Event().wait(0.0001)
                account["balance"] = before + 1
                service.release(lease)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert account["balance"] == 400
        assert len(tokens) < 400, "none was handed over"
        assert service.store.read("ann") is None
        assert service.local_waiters.latest("ann") is None


class TestTheQueueMustBeKnown:
    """Cases that time makes rare."""

    @pytest.fixture
    def known(self, clock: ManualClock) -> _Known:
        return _Known(clock)

    def test_handed_over(self, known: _Known) -> None:
        assert known.hand_over()

    def test_not_while_the_waiter_asks_the_store(self, known: _Known) -> None:
        known.waiter.resting = False
        assert not known.hand_over()

    def test_not_a_queue_of_long_ago(self, known: _Known, clock: ManualClock) -> None:
        clock.advance(1.1)
        assert not known.hand_over()

    def test_not_of_another_holders_record(self, known: _Known) -> None:
        known.lease = known.lease._replace(token="another")
        assert not known.hand_over()

    @pytest.mark.parametrize("state", ["degraded", "unsettled"])
    def test_not_a_lease_that_the_store_may_not_have(self, known: _Known, state: str) -> None:
        known.lease = known.lease._replace(
            degraded=state == "degraded", unsettled=state == "unsettled"
        )
        assert not known.hand_over()

    def test_not_if_the_record_is_gone(self, known: _Known) -> None:
        known.tell(None)
        assert not known.hand_over()

    def test_an_older_reading_changes_nothing(self, known: _Known, clock: ManualClock) -> None:
        known.waiters.tell("ann", local_waiters.Reading(None, clock.now() - 0.5))
        assert known.hand_over()

    def test_not_to_a_waiter_behind_another(self, known: _Known, clock: ManualClock) -> None:
        known.store.append("ann", f"\n~i first {clock.wall() - 60:.3f} []".encode())
        known.tell(known.read())
        assert not known.hand_over()


class _Known:
    """A holder, and a waiter that rests in the queue."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.store = MemoryStore(clock=clock)
        self.waiters = LocalWaiters(clock)
        service = LockService(self.store, clock=clock, listeners=Listeners())
        self.lease: Lease = service.acquire("ann")
        claim = make_claim("ann")
        self.waiter = local_waiters.LocalWaiter(claim, Bell())
        self.waiters.enter(self.waiter)
        service.protocol.join(claim)
        self.tell(self.read())
        self.waiter.resting = True

    def read(self) -> Record:
        return record_of(self.store, "ann")

    def tell(self, record: Record | None) -> None:
        self.waiters.tell("ann", local_waiters.Reading(record, self.clock.now()))

    def hand_over(self) -> bool:
        done = self.waiters.hand_over(self.lease)
        assert done == (self.waiter.lease is not None)
        assert done == self.waiter.bell.rung
        return done


class TestReadings:
    @pytest.mark.parametrize("shared", [True, False])
    def test_one_polls_for_all(
        self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, shared: bool
    ) -> None:
        """Without sharing, the negative control, each polls for itself."""
        if not shared:
            monkeypatch.setattr(LocalWaiters, "latest", lambda *_: None)
        alone, crowd = _reads(clock, 1), _reads(clock, 12)
        assert alone > 50
        if shared:
            assert crowd < alone * 1.3
        else:
            assert crowd > alone * 2


def _reads(clock: ManualClock, waiters: int) -> int:
    """Return how often waiters of one process read the record during a hold of two seconds."""
    store = MemoryStore(clock=clock, wakes=False)
    with World(clock, Watch(store, clock)).running() as world:
        other, web = world.process("other/web"), world.process("host/web")
        reads = []

        def hold() -> None:
            lease = other.service.acquire("ann")
            other.clock.sleep(2)
            reads.append(store.asked["read"])
            other.service.release(lease)

        def wait() -> None:
            web.clock.sleep(0.001)
            web.service.release(web.service.acquire("ann", wait_timeout=10))

        actors = [world.spawn(other, "holder", hold)]
        actors += [world.spawn(web, f"waiter {number}", wait) for number in range(waiters)]
        world.pass_time(10, until=lambda: all(actor.finished for actor in actors))
        assert world.watch.violations == []
        return int(reads[0])
