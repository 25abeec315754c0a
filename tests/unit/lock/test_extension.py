"""Extension by hand, and `with_extension` in the manner of `dynamically-extended-lock.txt`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import userlock
from tests.leases import existing, record_of
from tests.unit.lock.pulse import Here
from userlock import HeldLock, LockNotHeld, LockServiceUnavailable, LockTimeout
from userlock.events import Extended, LeaseLost
from userlock.lock.scope import LockScope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


@pytest.fixture
def tenure(scope: LockScope) -> HeldLock:
    return scope.acquire("ann", lock_timeout=10)


class TestExtend:
    @pytest.mark.parametrize("seconds", [3, 30.5])
    def test_the_lease_runs_for_so_long_from_now(
        self, here: Here, tenure: HeldLock, seconds: float
    ) -> None:
        """Not by that much longer: the remaining time does not count."""
        here.clock.advance(4)
        tenure.extend(seconds)
        assert tenure.expires_in == seconds
        assert here.events[-1] == Extended("ann", seconds)
        here.clock.advance(seconds - 0.1)
        assert not record_of(here.store, "ann").lapsed
        here.clock.advance(0.1)
        assert tenure._ran_out
        assert record_of(here.store, "ann").lapsed

    def test_it_may_be_added_to_the_rest(self, here: Here, tenure: HeldLock) -> None:
        here.clock.advance(4)
        for _ in range(3):
            tenure.extend(by=2)
        assert tenure.expires_in == pytest.approx(12)
        last = here.events[-1]
        assert isinstance(last, Extended)
        assert last.seconds == pytest.approx(12)
        here.clock.advance(11.9)
        assert not record_of(here.store, "ann").lapsed
        here.clock.advance(0.2)
        assert record_of(here.store, "ann").lapsed
        with pytest.raises(LockNotHeld, match="ran out"):
            tenure.extend(by=2)

    def test_both_together_may_be_too_long(self, tenure: HeldLock) -> None:
        with pytest.raises(ValueError, match="the rest of the lease and by must be at least"):
            tenure.extend(by=30 * 86400 - 3600)
        assert tenure.expires_in == 10

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({}, TypeError),
            ({"seconds": 1, "by": 1}, TypeError),
            ({"by": "1"}, TypeError),
            ({"seconds": "5"}, TypeError),
            ({"seconds": 0}, ValueError),
            ({"seconds": 30 * 86400}, ValueError),
            ({"by": 0}, ValueError),
        ],
    )
    def test_it_takes_one_usable_number(
        self, tenure: HeldLock, arguments: dict[str, Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            tenure.extend(**arguments)
        assert tenure.expires_in == 10

    def test_it_is_one_round_trip(self, store: MemoryStore, tenure: HeldLock) -> None:
        before = store.asked.total()
        tenure.extend(5)
        assert store.asked.total() == before + 1


class TestErrors:
    def test_a_released_lock(self, scope: LockScope, tenure: HeldLock) -> None:
        scope.release("ann")
        with pytest.raises(LockNotHeld, match="'ann' cannot be extended: it has been released"):
            tenure.extend(5)

    def test_a_lease_that_ran_out(self, here: Here, tenure: HeldLock) -> None:
        here.clock.advance(10.1)
        asked = here.store.asked.total()
        with pytest.raises(LockNotHeld, match=r"is lost: its lease of 10 s ran out") as caught:
            tenure.extend(5)
        assert caught.value.lock_id == "ann"
        assert tenure.lost == "its lease of 10 s ran out"
        assert [type(event) for event in here.events if isinstance(event, LeaseLost)] == [LeaseLost]
        assert here.store.asked.total() == asked

    def test_a_store_that_does_not_answer_leaves_the_lease_as_it_was(
        self, here: Here, tenure: HeldLock
    ) -> None:
        here.store.go_down("connection refused")
        with pytest.raises(LockServiceUnavailable, match="connection refused") as caught:
            tenure.extend(60)
        assert caught.value.lock_id == "ann"
        assert tenure.expires_in == 10
        assert not tenure.lost
        here.store.come_back()
        tenure.extend(60)
        assert tenure.expires_in == 60

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, None])
    def test_a_shorter_lease_with_a_lost_reply_is_not_relied_on_for_longer(
        self,
        here: Here,
        tenure: HeldLock,
        monkeypatch: pytest.MonkeyPatch,
        error: type[BaseException] | None,
    ) -> None:
        """The store may have executed it: also if the thread is stopped meanwhile."""
        if error is None:
            here.store.lose_reply("swap")
            with pytest.raises(LockServiceUnavailable):
                tenure.extend(2)
        else:
            extend = here.service.protocol.extend

            async def interrupted(*args: object) -> object:
                await extend(*args)  # type: ignore[arg-type]
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(here.service.protocol, "extend", interrupted)
                with pytest.raises(error):
                    tenure.extend(2)
        here.clock.advance(1.9)
        assert tenure.expires_in == pytest.approx(0.1)
        here.clock.advance(0.2)
        assert tenure._ran_out
        assert record_of(here.store, "ann").lapsed

    def test_one_that_was_never_sent_changes_nothing(
        self, store: MemoryStore, tenure: HeldLock
    ) -> None:
        store.go_down("connection refused", sent=False)
        with pytest.raises(LockServiceUnavailable):
            tenure.extend(2)
        assert tenure.expires_in == 10

    def test_a_longer_lease_with_a_lost_reply_can_be_extended_again(
        self, here: Here, scope: LockScope, tenure: HeldLock
    ) -> None:
        here.store.lose_reply("swap")
        with pytest.raises(LockServiceUnavailable):
            tenure.extend(60)
        assert tenure.expires_in == 10
        tenure.extend(30)
        assert tenure.expires_in == 30
        scope.release("ann")
        assert here.store.read("ann") is None


class TestAcquiredLock:
    """The result of `acquire_lock` can be extended like that of `with global_lock(…)`."""

    def test_it_runs_for_so_long_from_now(self, scope: LockScope, here: Here) -> None:
        lock = userlock.acquire_lock("ann", lock_timeout=10)
        here.clock.advance(4)
        lock.extend(30.5)
        assert lock.tenure.expires_in == 30.5
        assert here.events[-1] == Extended("ann", 30.5)


Extend = Callable[[float], None]


@pytest.mark.usefixtures("configured")
class TestWithExtension:
    """Work in steps of two seconds, under a lease of two and a half."""

    def test_a_short_lease_outlasts_long_work(self, here: Here) -> None:
        started = here.clock.now()

        def work(extend: Extend) -> str:
            for _ in range(5):
                here.clock.advance(2)
                with pytest.raises(LockTimeout):
                    here.service.acquire("ann", wait_timeout=0)
                extend(2.5)
            return "Woot!"

        assert userlock.with_extension("ann", work, lock_timeout=2.5) == "Woot!"
        assert here.clock.now() - started == 10
        assert here.store.read("ann") is None
        assert not any(isinstance(event, LeaseLost) for event in here.events)

    def test_a_minute_unless_another_time_is_named(self, clock: ManualClock) -> None:
        rests = []

        def work(extend: Callable[..., None]) -> None:
            scope = existing(userlock.current_scope())
            for _ in range(5):
                clock.advance(2)
                extend(by=2)
                rests.append(scope.held["ann"].expires_in)

        userlock.with_extension("ann", work)
        assert rests == [60] * 5

    def test_without_extending_it_does_not(self, here: Here) -> None:
        """The negative control."""

        def work(extend: Extend) -> None:
            here.clock.advance(4)
            here.service.acquire("ann", wait_timeout=1)

        userlock.with_extension("ann", work, lock_timeout=2.5)
        assert isinstance(here.events[-1], LeaseLost)

    def test_work_that_would_run_later_is_refused(self, store: MemoryStore) -> None:
        async def coroutine(extend: Extend) -> None: ...

        def generator(extend: Extend) -> Iterator[int]:
            yield 1

        for work in (coroutine, generator):
            with pytest.raises(
                TypeError, match=r"with_extension cannot call .*(coroutine|generator)"
            ):
                userlock.with_extension("ann", work)
        assert store.read("ann") is None
