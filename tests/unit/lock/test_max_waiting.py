"""A bound on the callers of one process that wait for one lock."""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import logging
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from random import Random
from types import FrameType
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.forks import in_child
from tests.simulation.watch import Watch
from tests.simulation.world import World
from tests.unit.lock.pulse import Here
from userlock import LockPolicy, LockService, LockTimeout, PriorityPolicy, TooManyWaiting
from userlock.errors import LockError
from userlock.events import Event, Listeners, Rejected, log_event
from userlock.idempotency import user_lock
from userlock.idempotency.user_lock import UserLock
from userlock.lock import local_waiters, waiting
from userlock.lock.lease import Holder, Lease
from userlock.lock.local_waiters import Admission, Rejection
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

Then = Callable[[], object]


class Waiters:
    """Callers that wait for the lock of ann, in one thread: one inside the other."""

    def __init__(self, service: LockService, clock: ManualClock) -> None:
        self._service = service
        self._elsewhere = LockService(service.store, clock=clock, listeners=Listeners())
        self._clock = clock
        self.errors: list[LockError] = []
        self.served = 0

    def begin(self, number: int, then: Then, **options: Any) -> None:
        """Let callers wait; call `then` while all of them do, and return when none does."""
        if number == 0:
            then()
            return
        self._clock.after(0.001, lambda: self.begin(number - 1, then, **options))
        try:
            lease = self._service.acquire("ann", **{"wait_timeout": 10, **options})
        except LockTimeout as error:
            self.errors.append(error)
        else:
            self.served += 1
            self.release(lease)

    def release(self, lease: Lease) -> None:
        self._elsewhere.release(lease)


@pytest.fixture
def bounded(store: MemoryStore, clock: ManualClock, events: list[Event]) -> LockService:
    """Provide a service that lets three callers wait, and one of batch."""
    return service_with(store, clock, events)


def service_with(
    store: MemoryStore, clock: ManualClock, events: list[Event], **options: Any
) -> LockService:
    policy = LockPolicy(
        interactive=PriorityPolicy(max_waiting=3),
        batch=PriorityPolicy(max_waiting=1, wait_timeout=60),
    )
    listeners = Listeners([events.append, log_event])
    return LockService(store, policy=policy, clock=clock, listeners=listeners, **options)


def rejected(service: LockService, **options: Any) -> TooManyWaiting:
    with pytest.raises(TooManyWaiting) as caught:
        service.acquire("ann", **options)
    return caught.value


class TestTheBound:
    @pytest.mark.parametrize("most", [1, 5])
    def test_one_more_than_may_wait_is_rejected_at_once(self, here: Here, most: int) -> None:
        here.service.acquire("ann")
        waiters = Waiters(here.service, here.clock)

        def one_more() -> None:
            before, sleeps = here.store.asked.copy(), len(here.clock.sleeps)
            error = rejected(here.service, max_waiting=most)
            assert error.waiting == most == here.service.admission.waiting("ann")
            assert here.store.asked - before == {"create": 1}, "no more than to find it held"
            assert len(here.clock.sleeps) == sleeps

        waiters.begin(most, one_more, max_waiting=most)
        assert len(waiters.errors) == most
        assert not any(isinstance(error, TooManyWaiting) for error in waiters.errors)

    def test_without_a_bound_it_waits(self, service: LockService, clock: ManualClock) -> None:
        """The negative control."""
        service.acquire("ann")
        waiters = Waiters(service, clock)
        waiters.begin(20, lambda: service.acquire("bob"))
        assert service.admission.waiting("ann") == 0
        assert len(waiters.errors) == 20

    def test_zero_lets_nobody_wait(self, service: LockService) -> None:
        service.release(service.acquire("ann", max_waiting=0))
        service.acquire("ann")
        error = rejected(service, max_waiting=0)
        assert (error.waiting, error.holder) == (0, None)

    def test_other_locks_are_not_concerned(self, service: LockService, clock: ManualClock) -> None:
        service.acquire("ann")
        service.acquire("bob")
        Waiters(service, clock).begin(1, lambda: timed_out(service, "bob", max_waiting=1))

    def test_waiters_of_other_processes_are_not_counted(self, here: Here) -> None:
        other = LockService(here.store, clock=here.clock)
        here.service.acquire("ann")
        Waiters(other, here.clock).begin(5, lambda: timed_out(here.service, "ann", max_waiting=1))

    def test_the_policy_has_one_by_priority(self, bounded: LockService, clock: ManualClock) -> None:
        """All waiters count for each, so that batch leaves places to interactive requests."""
        bounded.acquire("ann")

        def two_wait() -> None:
            assert rejected(bounded, priority="batch").waiting == 2
            Waiters(bounded, clock).begin(1, three_wait)

        def three_wait() -> None:
            assert rejected(bounded).waiting == 3
            timed_out(bounded, "ann", max_waiting=4)  # the call decides

        waiters = Waiters(bounded, clock)
        waiters.begin(1, lambda: Waiters(bounded, clock).begin(1, two_wait), priority="batch")

    def test_callers_at_the_same_moment(self) -> None:
        crowd = Admission()
        together = threading.Barrier(16)
        admitted: list[bool] = []

        def enter() -> None:
            caller = Call()
            together.wait()
            admitted.append(crowd.enter("ann", caller, 5) is None)

        threads = [threading.Thread(target=enter) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (admitted.count(True), admitted.count(False)) == (5, 11)
        assert crowd.waiting("ann") == 5


def timed_out(service: LockService, lock_id: str, **options: Any) -> None:
    with pytest.raises(LockTimeout) as caught:
        service.acquire(lock_id, wait_timeout=0.5, **options)
    assert not isinstance(caught.value, TooManyWaiting)


class Call:
    """A call, for tests of the counting alone."""

    def __init__(self, holder: Holder | None = None) -> None:
        self.holder = holder


class TestThoseThatDoNotCount:
    def test_a_caller_that_tries_once(self, bounded: LockService, clock: ManualClock) -> None:
        bounded.acquire("ann")

        def try_once() -> None:
            with pytest.raises(LockTimeout) as caught:
                bounded.acquire("ann", wait_timeout=0)
            assert type(caught.value) is LockTimeout
            assert bounded.admission.waiting("ann") == 3

        Waiters(bounded, clock).begin(3, try_once)

    def test_entering_a_lock_again(self, bounded: LockService, clock: ManualClock) -> None:
        def again() -> None:
            with userlock.global_lock("ann", max_waiting=0):
                assert bounded.admission.waiting("ann") == 3

        with userlock.scope(bounded), userlock.global_lock("ann"):
            Waiters(bounded, clock).begin(3, again)

    @pytest.mark.parametrize("exempt", [True, False])
    def test_a_holder_that_takes_its_lock_back(
        self, here: Here, exempt: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Batch yields to three requests. Without the exemption, the control, it is rejected."""
        if not exempt:
            monkeypatch.setattr("userlock.lock.scope.sys", types.SimpleNamespace(maxsize=1))
        policy = LockPolicy(
            interactive=PriorityPolicy(max_waiting=3), batch=PriorityPolicy(max_waiting=1)
        )
        outcome: list[object] = []

        def job() -> None:
            with (
                userlock.scope(process.service),
                userlock.global_lock("ann", priority="batch") as lock,
            ):
                process.clock.sleep(0.1)
                try:
                    outcome.append(lock.yield_to_waiters().held)
                except TooManyWaiting as error:
                    outcome.append(error.waiting)

        def request() -> None:
            process.clock.sleep(0.01)
            lease = process.service.acquire("ann")
            process.clock.sleep(0.02)
            process.service.release(lease)

        with World(here.clock, Watch(here.store, here.clock), policy=policy).running() as world:
            process = world.process("host/web")
            actors = [world.spawn(process, "job", job)]
            actors += [world.spawn(process, f"request {each}", request) for each in range(3)]
            world.pass_time(5, until=lambda: all(actor.finished for actor in actors))
        assert outcome == [True if exempt else 3]
        assert process.service.admission.waiting("ann") == 0


class TestPlacesAreGivenBack:
    """However a wait ends. Checked by the number, and by as many callers that wait again."""

    @pytest.mark.parametrize("outage", ["optimistic", "fail"])
    def test_by_an_outage(self, here: Here, outage: str) -> None:
        service = service_with(here.store, here.clock, here.events, outage=outage)
        service.acquire("ann")
        here.clock.after(0.5, here.store.go_down)
        with contextlib.suppress(userlock.LockServiceUnavailable):
            assert service.acquire("ann").degraded
        assert service.admission.waiting("ann") == 0

    def test_wherever_the_thread_is_stopped(self) -> None:
        """At each line of the wait and of the counting, also while the place is given back."""
        left = list(places_left_behind())
        assert len(left) > 200
        assert not any(left)
        left = list(places_left_by_calls())
        assert len(left) > 50
        assert not any(left)

    def test_leaving_once_is_not_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The negative control: a thread that is stopped while it leaves keeps its place."""
        leave = Admission.leave
        left: set[int] = set()

        def once(self: Admission, lock_id: str, caller: Any) -> None:
            if id(self) not in left:
                left.add(id(self))
                kept.append(self)  # so that no other has its id
                leave(self, lock_id, caller)

        kept: list[Admission] = []
        monkeypatch.setattr(Admission, "leave", once)
        assert any(places_left_behind())


def places_left_behind() -> Iterator[bool]:
    """Stop a waiting thread at each of its steps in turn; say whether it left a place behind."""
    files = {waiting.__file__, local_waiters.__file__}
    number, stopped = 0, True
    while stopped:
        number += 1
        clock = ManualClock()  # each time the same steps
        store = MemoryStore(clock=clock)
        service = LockService(store, clock=clock, random=Random(1), listeners=Listeners())
        elsewhere = LockService(store, clock=clock, listeners=Listeners())
        holder = service.acquire("ann")
        clock.after(0.01, functools.partial(elsewhere.release, holder))
        acquire = functools.partial(service.acquire, "ann", wait_timeout=1)
        stopped = stopped_at_line(number, files, acquire)
        yield bool(service.admission.waiting("ann") or service.local_waiters.latest("ann"))


def places_left_by_calls() -> Iterator[bool]:
    """As above, of a request that is in a call: it counts among the waiters for its user's lock."""
    number, stopped = 0, True
    while stopped:
        number += 1
        service = LockService(MemoryStore(), listeners=Listeners())
        call = functools.partial(calling, service)
        stopped = stopped_at_line(number, {user_lock.__file__, local_waiters.__file__}, call)
        yield bool(service.admission.waiting("ann"))


def calling(service: LockService) -> None:
    key = ndb.Key("Request", 1, project="site", database="", namespace="")
    with (
        userlock.scope(service) as scope,
        UserLock(scope, key, "ann", None) as lock,
        lock.calling(),
    ):
        lock.leave()


def stopped_at_line(number: int, files: set[str], call: Callable[[], object]) -> bool:
    """Call; stop the thread before a line, but not where CPython handles no signals."""
    lines = itertools.count(1)
    stopped = False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal stopped
        name, line = frame.f_code.co_filename, frame.f_lineno
        if name not in files:
            return None
        if event != "line" or "with self._mutex" in linecache.getline(name, line):
            return trace
        if next(lines) == number:
            stopped = True
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return stopped


class TestForks:
    def test_a_child_has_no_waiters(self) -> None:
        crowd = Admission()
        assert crowd.enter("ann", Call(), 1) is None
        assert in_child(lambda: [crowd.waiting("ann"), crowd.enter("ann", Call(), 1)]) == [0, None]
        assert crowd.waiting("ann") == 1


class TestFallback:
    def test_a_wait_that_an_outage_moves_there_counts_once(self, here: Here) -> None:
        there = MemoryStore(clock=here.clock)
        fallback = LockService(there, clock=here.clock, outage="fail")
        fallback.acquire("ann")
        service = service_with(here.store, here.clock, here.events, fallback=fallback)
        service.acquire("ann")
        seen: list[int] = []
        here.clock.after(0.5, here.store.go_down)
        here.clock.after(1.0, lambda: seen.append(service.admission.waiting("ann")))
        with pytest.raises(LockTimeout):
            service.acquire("ann", wait_timeout=5)
        assert seen == [1]
        assert service.admission.waiting("ann") == 0


class TestTheError:
    def test_it_names_lock_number_holder_and_time(
        self, bounded: LockService, clock: ManualClock
    ) -> None:
        bounded.release(bounded.acquire("ann"), held_seconds=1.5)
        bounded.acquire("ann", request="POST /answers")
        errors: list[TooManyWaiting] = []
        Waiters(bounded, clock).begin(3, lambda: errors.append(rejected(bounded)))
        (error,) = errors
        assert (error.lock_id, error.waiting) == ("ann", 3)
        assert error.holder is not None
        assert error.holder.request == "POST /answers"
        assert error.retry_after == 6, "the holder and three waiters, 1.5 s each"
        for part in ("'ann'", "3 callers wait", "max_waiting", "POST /answers", "in 6 s"):
            assert part in str(error)
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 (our own)
        assert (str(again), again.waiting, again.retry_after) == (str(error), 3, 6)

    @pytest.mark.parametrize(("held", "seconds"), [(0.0001, 1), (500, 60)])
    def test_the_time_has_bounds(
        self, bounded: LockService, clock: ManualClock, held: float, seconds: int
    ) -> None:
        bounded.release(bounded.acquire("ann"), held_seconds=held)
        bounded.acquire("ann")
        errors: list[TooManyWaiting] = []
        Waiters(bounded, clock).begin(3, lambda: errors.append(rejected(bounded)))
        assert errors[0].retry_after == seconds


class TestStatements:
    @pytest.mark.parametrize(
        "take",
        [
            pytest.param(
                lambda: userlock.global_lock("ann", max_waiting=0).__enter__(), id="global_lock"
            ),
            pytest.param(
                lambda: userlock.global_lock("ann", max_waiting=0)(print)(), id="decorator"
            ),
            pytest.param(
                lambda: userlock.global_locks(["aa", "ann"], max_waiting=0).__enter__(),
                id="global_locks",
            ),
            pytest.param(lambda: userlock.acquire_lock("ann", max_waiting=0), id="acquire_lock"),
            pytest.param(
                lambda: userlock.with_extension(
                    "ann", lambda extend: None, lock_timeout=5, max_waiting=0
                ),
                id="with_extension",
            ),
        ],
    )
    def test_it_is_passed_on(self, service: LockService, take: Callable[[], object]) -> None:
        service.acquire("ann")
        with userlock.scope(service) as scope:
            with pytest.raises(TooManyWaiting):
                take()
            assert not scope.held
        assert service.holder("aa") is None, "all, or none"


class TestEvents:
    def test_each_rejection_is_an_event_and_the_first_a_warning(
        self, bounded: LockService, here: Here, caplog: pytest.LogCaptureFixture
    ) -> None:
        bounded.acquire("ann", request="POST /answers")

        def four_more() -> None:
            for _ in range(4):
                rejected(bounded)

        with caplog.at_level(logging.INFO, "userlock"):
            Waiters(bounded, here.clock).begin(3, four_more)
        found = [event for event in here.events if isinstance(event, Rejected)]
        assert [(each.lock_id, each.waiting, each.count) for each in found] == [
            ("ann", 3, count) for count in (1, 2, 3, 4)
        ]
        assert all("POST /answers" in each.blocked_by for each in found)
        lines = [record for record in caplog.records if "callers wait" in record.getMessage()]
        assert [record.levelname for record in lines] == ["WARNING"]

    def test_the_count_begins_again_when_nobody_waits(self) -> None:
        crowd = Admission()
        for _ in range(2):
            caller = Call()
            assert crowd.enter("ann", caller, 1) is None
            assert crowd.enter("ann", Call(), 1) == Rejection(1, None, 1)
            assert crowd.enter("ann", Call(), 1) == Rejection(1, None, 2)
            crowd.leave("ann", caller)
            crowd.leave("ann", caller)
