"""Many leases that are due together: renewed in few packets, but each independently."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

import userlock
from tests.leases import record_of
from tests.unit.lock.pulse import LEASE, live, losses
from userlock import HeldLock, LockService
from userlock.clock import Clock
from userlock.events import Event, Extended, Listeners
from userlock.lock.lease import Granted, Lost, Unavailable
from userlock.lock.scope import LockScope
from userlock.lock.store import StoreUnavailable, Swap
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim

NAMES = [f"learner-{number}" for number in range(8)]


class Packets(MemoryStore):
    """A store that records requests per packet, and can break in the middle.

    Attributes:
        packets: the number of swaps of each packet.
        answers: the number of replies in the next packet; then the connection breaks, and the
            rest does not arrive.
        continues: whether the rest is executed nevertheless.
    """

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.packets: list[int] = []
        self.answers: int | None = None
        self.continues = False

    def swap_many(self, swaps: Sequence[Swap]) -> list[object | StoreUnavailable | None]:
        assert len({swap.lock_id for swap in swaps}) == len(swaps)
        self.packets.append(len(swaps))
        answers, self.answers = self.answers, None
        if answers is None:
            return super().swap_many(swaps)
        executed = super().swap_many(swaps if self.continues else swaps[:answers])
        broken = StoreUnavailable("the connection broke")
        return executed[:answers] + [broken] * (len(swaps) - answers)


class OneByOne(Packets):
    """A store without batches."""

    batches = False


@pytest.fixture
def store(clock: ManualClock) -> Packets:
    return Packets(clock=clock)


def held(scope: LockScope, names: Sequence[str] = NAMES) -> list[HeldLock]:
    return [scope.acquire(name, heartbeat=True) for name in names]


class TestTogether:
    def test_simultaneous_renewals_are_one_packet(
        self,
        service: LockService,
        clock: ManualClock,
        store: Packets,
        scope: LockScope,
        events: list[Event],
    ) -> None:
        tenures = held(scope)
        live(service, clock, 3 * LEASE)
        assert len(store.packets) >= 8
        assert set(store.packets) == {len(NAMES)}
        assert all(tenure.remaining_seconds > LEASE / 2 for tenure in tenures)
        assert len([event for event in events if isinstance(event, Extended)]) == sum(store.packets)
        scope.close()
        assert all(store.read(name) is None for name in NAMES)
        assert losses(events) == []

    def test_many_renewals_are_several_packets(
        self, service: LockService, clock: ManualClock, store: Packets, scope: LockScope
    ) -> None:
        held(scope, [f"learner-{number}" for number in range(250)])
        live(service, clock, LEASE / 3 + 0.1)
        assert store.packets == [100, 100, 50]

    def test_later_renewals_are_not_included(
        self, service: LockService, clock: ManualClock, store: Packets, scope: LockScope
    ) -> None:
        for name in NAMES:
            scope.acquire(name, heartbeat=True)
            clock.advance(0.1)
        live(service, clock, LEASE / 3 + 0.1)
        assert store.packets == []
        assert store.asked["swap"] == len(NAMES)

    def test_those_of_other_services_have_packets_of_their_own(
        self, service: LockService, clock: ManualClock, store: Packets, scope: LockScope
    ) -> None:
        other = LockService(
            Packets(clock=clock), clock=clock, renewals=service.renewals, listeners=Listeners()
        )
        scopes = [scope, LockScope(other, userlock.Settings())]
        tenures = [each.acquire(name, heartbeat=True) for name in NAMES for each in scopes]
        live(service, clock, 2 * LEASE)
        assert all(tenure.remaining_seconds > LEASE / 2 for tenure in tenures)
        assert store.asked["swap"] == other.store.asked["swap"]  # type: ignore[attr-defined]

    def test_a_store_without_batches_is_called_for_each(
        self, clock: ManualClock, events: list[Event]
    ) -> None:
        """The negative control of these counts."""
        store = OneByOne(clock=clock)
        service = LockService(store, clock=clock, listeners=Listeners([events.append]))
        with userlock.scope(service) as scope:
            tenures = held(scope)
            live(service, clock, 3 * LEASE)
            assert (len(store.packets), store.asked["swap"] >= 8 * len(NAMES)) == (0, True)
            assert all(tenure.remaining_seconds > LEASE / 2 for tenure in tenures)


Accident = Callable[[Packets, LockService, HeldLock], object]


def _evicted(store: Packets, service: LockService, tenure: HeldLock) -> None:
    store.evict(tenure.lock_id)


def _taken(store: Packets, service: LockService, tenure: HeldLock) -> None:
    store.evict(tenure.lock_id)
    service.acquire(tenure.lock_id, request="GET /theirs")


def _broken(store: Packets, service: LockService, tenure: HeldLock) -> None:
    service.break_lock(tenure.lock_id, by="Jo")


def _waited_for(store: Packets, service: LockService, tenure: HeldLock) -> None:
    assert service.protocol.join(make_claim(tenure.lock_id)) is not None


def _released(store: Packets, service: LockService, tenure: HeldLock) -> None:
    tenure.scope.release(tenure.lock_id)


def _released_meanwhile(store: Packets, service: LockService, tenure: HeldLock) -> None:
    store.before("swap", lambda: tenure.scope.release(tenure.lock_id))


def _extended(store: Packets, service: LockService, tenure: HeldLock) -> None:
    tenure.extend(100)


def _reply_lost(store: Packets, service: LockService, tenure: HeldLock) -> None:
    store.lose_reply("swap")


def _command_lost(store: Packets, service: LockService, tenure: HeldLock) -> None:
    store.lose_command("swap")


def _nothing(store: Packets, service: LockService, tenure: HeldLock) -> None: ...


ACCIDENTS: list[Accident] = [
    *(_evicted, _taken, _broken, _waited_for, _released, _released_meanwhile, _extended),
    *(_reply_lost, _command_lost, _nothing),
]


def _what_comes_of(make: type[Packets], accident: Accident, which: int) -> list[object]:
    """Return the observable result after one fault in one of many leases."""
    clock, events = ManualClock(), list[Event]()
    store = make(clock=clock)
    service = LockService(store, clock=clock, listeners=Listeners([events.append]))
    with userlock.scope(service) as scope:
        tenures = held(scope)
        clock.advance(1)
        accident(store, service, tenures[which])
        live(service, clock, LEASE)
        seen: list[object] = [
            (tenure.held, tenure.lost.partition(", on ")[0], round(tenure.remaining_seconds, 3))
            for tenure in tenures
        ]
        kinds = sorted((type(event).__name__, str(event.lock_id)) for event in events)
        lines = [found and found.record.count(b"\n") for found in map(store.read, NAMES)]
        return [*seen, *kinds, *lines]


@pytest.mark.parametrize("which", [0, 3, 7])
@pytest.mark.parametrize("accident", ACCIDENTS, ids=lambda accident: accident.__name__)
def test_batches_and_single_renewals_have_the_same_result(accident: Accident, which: int) -> None:
    """Of each lease: a fault of one does not affect the others."""
    together = _what_comes_of(Packets, accident, which)
    assert together == _what_comes_of(OneByOne, accident, which)


class TestABreak:
    """The connection breaks between the replies."""

    @pytest.mark.parametrize("continues", [True, False])
    @pytest.mark.parametrize("answers", [0, 3, 7])
    def test_unknown_outcomes_are_checked_and_nothing_is_lost(
        self,
        service: LockService,
        clock: ManualClock,
        store: Packets,
        scope: LockScope,
        events: list[Event],
        answers: int,
        continues: bool,
    ) -> None:
        tenures = held(scope)
        store.answers, store.continues = answers, continues
        live(service, clock, LEASE / 3 + 0.01)
        done = [tenure.remaining_seconds > LEASE * 0.9 for tenure in tenures]
        assert done == [True] * answers + [False] * (len(NAMES) - answers)
        live(service, clock, 1.1)
        assert all(tenure.remaining_seconds > LEASE * 0.8 for tenure in tenures)
        live(service, clock, 2 * LEASE)
        assert losses(events) == []
        scope.close()
        assert all(store.read(name) is None for name in NAMES)

    @pytest.mark.parametrize("continues", [True, False])
    def test_no_lease_is_relied_on_for_longer_than_known(
        self, service: LockService, clock: ManualClock, store: Packets, continues: bool
    ) -> None:
        leases = [service.acquire(name, lock_timeout=LEASE) for name in NAMES]
        store.answers, store.continues = 3, continues
        outcomes = service.extend_many([(lease, 60) for lease in leases])
        assert [type(outcome) for outcome in outcomes] == [Granted] * 3 + [Unavailable] * 5
        clock.advance(LEASE)
        for name, outcome in zip(NAMES, outcomes, strict=True):
            if isinstance(outcome, Granted):
                assert not record_of(store, name).lapsed

    def test_a_store_that_hangs_costs_one_time_out(
        self, service: LockService, clock: ManualClock, store: Packets, scope: LockScope
    ) -> None:
        held(scope, [f"learner-{number}" for number in range(250)])
        store.before("swap", lambda: clock.advance(0.3))
        store.go_down("timed out", slow=True)
        clock.advance(LEASE / 3 + 0.1)
        service.renewals.run_due()
        assert store.packets == [100], "the breaker says it of the others"


class TestOutcomes:
    """The function `extend_many` itself."""

    def test_they_are_in_order(
        self, service: LockService, clock: ManualClock, store: Packets
    ) -> None:
        fine, brief, gone, contended = (
            service.acquire(name, lock_timeout=seconds)
            for name, seconds in (("a", 60), ("b", 1), ("c", 60), ("d", 60))
        )
        store.go_down(sent=False)
        degraded = service.acquire("e")
        store.come_back()
        store.evict("c")
        service.protocol.join(make_claim("d"))
        clock.advance(2)
        leases = [degraded, contended, gone, brief, fine]
        outcomes = service.extend_many([(lease, 100 + n) for n, lease in enumerate(leases)])
        assert [type(each) for each in outcomes] == [Granted, Granted, Lost, Lost, Granted]
        for n, outcome in enumerate(outcomes):
            if isinstance(outcome, Granted):
                assert outcome.lease.lock_id == leases[n].lock_id
                assert outcome.lease.deadline == clock.now() + 100 + n
        assert outcomes[2:4] == [Lost("forgotten"), Lost("ran out")]

    def test_two_leases_of_one_lock(self, service: LockService, store: Packets) -> None:
        """The one that has lost it does not know yet."""
        old = service.acquire("ann")
        store.evict("ann")
        new = service.acquire("ann")
        first, second = service.extend_many([(old, 60), (new, 60)])
        assert isinstance(first, Lost)
        assert isinstance(second, Granted)


class TestOthers:
    def test_a_listener_may_do_with_the_other_locks_what_it_likes(
        self, service: LockService, clock: ManualClock, scope: LockScope
    ) -> None:
        tenures = held(scope)

        def meddle(event: Event) -> None:
            if isinstance(event, Extended) and event.seconds == LEASE:
                for tenure in tenures:
                    tenure.extend(LEASE + 1)

        service.listeners.add(meddle)
        live(service, clock, LEASE / 2)
        assert all(tenure.remaining_seconds > LEASE / 2 for tenure in tenures)

    def test_a_store_with_a_bug_leaves_nothing_locked_up(
        self,
        service: LockService,
        clock: ManualClock,
        store: Packets,
        scope: LockScope,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        tenures = held(scope)

        def fail() -> None:
            raise ZeroDivisionError

        store.before("swap", fail)
        live(service, clock, LEASE / 3 + 0.01)
        assert "ZeroDivisionError" in caplog.text
        for tenure in tenures:
            tenure.extend(LEASE)
        live(service, clock, 3 * LEASE)
        assert all(not tenure.ran_out for tenure in tenures)

    def test_an_extension_by_hand_delays_no_other_renewal(
        self, service: LockService, clock: ManualClock, store: Packets, scope: LockScope
    ) -> None:
        first, *others = held(scope)
        with first.extending:
            live(service, clock, LEASE / 3 + 0.01)
            assert all(tenure.remaining_seconds > LEASE * 0.9 for tenure in others)
            assert first.remaining_seconds < LEASE * 0.7
        live(service, clock, 1)
        assert first.remaining_seconds > LEASE * 0.9
