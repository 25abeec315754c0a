"""One record that the store refuses, and the locks beside it."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection
from random import Random

import pytest

import userlock
from tests.unit.lock.pulse import live
from tests.unit.lock.shaky import SteppedStore
from userlock import LockService
from userlock.errors import LockServiceUnavailable
from userlock.events import Listeners
from userlock.lock.store import (
    NoConnection,
    RecordBusy,
    RecordRefused,
    StoreUnavailable,
)
from userlock.stores.memory import Verb
from userlock.testing import ManualClock

VERBS = ("create", "read", "swap", "remove", "append")
BAD = "bad"
#: Requests for the refused record in its lease of a minute: those of the caller itself, and of
#: later releases.
MOST_REQUESTS = 40

Trouble = Callable[[], StoreUnavailable]


class Refusing(SteppedStore):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.refused: Collection[str] = ()
        self.trouble: Trouble = lambda: RecordRefused("something else stands there")
        self.requests: collections.Counter[str] = collections.Counter()

    def _befall(self, verb: Verb, lock_id: str) -> None:
        self.requests[lock_id] += 1
        if lock_id == BAD and verb in self.refused:
            self.clock.sleep(0.1)  # the round trip
            raise self.trouble()


@pytest.fixture
def store(clock: ManualClock) -> Refusing:
    return Refusing(clock)


def service_on(store: Refusing, clock: ManualClock, outage: str = "optimistic") -> LockService:
    return LockService(store, clock=clock, random=Random(1), listeners=Listeners(), outage=outage)


def degraded_neighbours(service: LockService, clock: ManualClock) -> int:
    """Return how many locks of others are degraded or refused in the minute that follows."""
    degraded = 0
    for number in range(20):
        try:
            with userlock.scope(service), userlock.global_lock(f"learner-{number % 7}") as tenure:
                degraded += tenure.degraded
        except LockServiceUnavailable:
            degraded += 1
        live(service, clock, 3)
    return degraded


def use(service: LockService, clock: ManualClock, *, heartbeat: bool) -> None:
    """Take the lock whose record is refused, hold it for a while, and leave it."""
    try:
        with (
            userlock.scope(service),
            userlock.global_lock(BAD, wait_timeout=0.5, heartbeat=heartbeat),
        ):
            live(service, clock, 15)
    except userlock.errors.LockError:
        pass


some_verbs = pytest.mark.parametrize("refused", [*((each,) for each in VERBS), VERBS], ids="+".join)
heartbeats = pytest.mark.parametrize("heartbeat", [True, False], ids=["heartbeat", "lease"])


@some_verbs
@heartbeats
@pytest.mark.parametrize(
    ("trouble", "outage"), [(RecordRefused, "optimistic"), (RecordBusy, "fail")]
)
def test_other_locks_do_not_notice(
    store: Refusing,
    clock: ManualClock,
    refused: tuple[str, ...],
    heartbeat: bool,
    trouble: type[RecordRefused],
    outage: str,
) -> None:
    store.refused, store.trouble = refused, lambda: trouble("refused")
    service = service_on(store, clock, outage)
    use(service, clock, heartbeat=heartbeat)
    assert degraded_neighbours(service, clock) == 0
    assert not service.client.pending


@some_verbs
@heartbeats
def test_a_record_that_is_spoiled_while_its_lock_is_held(
    store: Refusing, clock: ManualClock, refused: tuple[str, ...], heartbeat: bool
) -> None:
    service = service_on(store, clock)
    with userlock.scope(service), userlock.global_lock(BAD, heartbeat=heartbeat):
        store.refused = refused
        store.requests.clear()
        assert degraded_neighbours(service, clock) == 0
    assert degraded_neighbours(service, clock) == 0
    assert store.requests[BAD] <= (60 + MOST_REQUESTS if heartbeat else MOST_REQUESTS)
    assert not service.client.pending


def test_the_lock_itself_is_degraded_or_refused(store: Refusing, clock: ManualClock) -> None:
    store.refused = VERBS
    assert service_on(store, clock).acquire(BAD).degraded
    with pytest.raises(LockServiceUnavailable, match="something else stands there"):
        service_on(store, clock, "fail").acquire(BAD)


def test_a_record_that_is_mended_is_released(store: Refusing, clock: ManualClock) -> None:
    service = service_on(store, clock)
    lease = service.acquire(BAD)
    store.refused = VERBS
    service.release(lease)
    live(service, clock, 1)
    store.refused = ()
    live(service, clock, 5)
    assert store.lock_ids() == []


def test_a_server_that_does_not_answer_is_everybodys(store: Refusing, clock: ManualClock) -> None:
    """Show that the tests above would notice."""

    def time_out() -> StoreUnavailable:
        clock.advance(0.3)
        return StoreUnavailable("timed out", slow=True)

    store.refused, store.trouble = VERBS, time_out
    service = service_on(store, clock)
    use(service, clock, heartbeat=False)
    assert degraded_neighbours(service, clock) > 5


def test_a_thread_without_a_connection_tells_nothing_of_the_server(
    store: Refusing, clock: ManualClock
) -> None:
    store.refused, store.trouble = VERBS, lambda: NoConnection("all are in use")
    service = service_on(store, clock)
    with pytest.raises(userlock.LockTimeout):
        service.acquire(BAD, wait_timeout=1)
    assert degraded_neighbours(service, clock) == 0


class TestBusyRecords:
    def test_a_waiter_that_cannot_join_polls_without_a_position(
        self, store: Refusing, clock: ManualClock
    ) -> None:
        service = service_on(store, clock)
        lease = service.acquire(BAD)
        store.refused, store.trouble = ["append"], lambda: RecordBusy("busy")
        began = clock.now()
        with pytest.raises(userlock.LockTimeout):
            service.acquire(BAD, wait_timeout=5)
        assert clock.now() - began == pytest.approx(5, abs=0.1)
        assert store.requests[BAD] < 200
        assert not lease.degraded

    def test_and_takes_the_lock_when_it_is_free(self, store: Refusing, clock: ManualClock) -> None:
        service, other = service_on(store, clock), service_on(store, clock)
        lease = service.acquire(BAD, lock_timeout=3)
        store.refused, store.trouble = ["append"], lambda: RecordBusy("busy")
        waited = other.acquire(BAD, wait_timeout=20)
        assert not waited.degraded
        assert clock.now() >= lease.deadline

    def test_one_that_does_not_wait_finds_the_lock_held(
        self, store: Refusing, clock: ManualClock
    ) -> None:
        service = service_on(store, clock)
        service.acquire(BAD)
        store.refused, store.trouble = ["read"], lambda: NoConnection("all are in use")
        with pytest.raises(userlock.LockTimeout):
            service.acquire(BAD, wait_timeout=0)
        store.trouble = lambda: StoreUnavailable("down", sent=False)
        assert service.acquire(BAD, wait_timeout=0).degraded

    @pytest.mark.parametrize("counts", [True, False], ids=["", "the control"])
    @pytest.mark.parametrize("trouble", [RecordBusy, NoConnection])
    @pytest.mark.parametrize("verb", ["create", "swap"])
    def test_a_claim_that_others_prevent_is_tried_again(
        self,
        store: Refusing,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
        verb: str,
        trouble: type[RecordBusy | NoConnection],
        counts: bool,
    ) -> None:
        """In demand is no outage."""
        monkeypatch.setattr(trouble, "of_demand", counts)
        service = service_on(store, clock)
        service.acquire(BAD, lock_timeout=1)
        times = iter(range(3))

        def prevented() -> StoreUnavailable:
            if next(times, None) is None:
                store.refused = ()
            return trouble("busy")

        store.refused, store.trouble = [verb], prevented
        assert service.acquire(BAD, wait_timeout=30).degraded is not counts
