"""Waiters that the store wakes: at once, and as soon as pollers if a wake-up is lost."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.lock.crowd import gathering
from userlock import LockService
from userlock.events import Listeners
from userlock.lock.policy import LockPolicy
from userlock.stores import MemoryStore
from userlock.testing import ManualClock
from userlock.waits import Bell

MOST = LockPolicy().interactive.polling.most_seconds


@pytest.fixture(params=[True, False], ids=["woken", "polling"])
def wakes(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Two:
    def __init__(self, clock: ManualClock, *, wakes: bool = True) -> None:
        self.clock = clock
        self.store = MemoryStore(clock=clock, wakes=wakes)
        self.here, self.elsewhere = (
            LockService(self.store, clock=clock, listeners=Listeners(), random=Random(each))
            for each in (1, 2)
        )

    def late_after(self, hold: float) -> float:
        """Wait for a lock that is held for so long; return the time since its release."""
        holder = self.elsewhere.acquire("ann")
        self.clock.after(hold, lambda: self.elsewhere.release(holder))
        released_at = self.clock.now() + hold
        lease = self.here.acquire("ann", wait_timeout=hold + 5)
        late = self.clock.now() - released_at
        self.clock.sleep(hold)  # so that both processes know the usual length of a hold
        self.here.release(lease)
        return late


@pytest.mark.parametrize("hold", [0.003, 0.4])
def test_a_waiter_goes_on_at_the_release(clock: ManualClock, hold: float, wakes: bool) -> None:
    """Without wake-ups, the negative control, only as polls come."""
    two = Two(clock, wakes=wakes)
    late = [two.late_after(hold * factor) for factor in (1.0, 1.03, 0.97, 1.01, 1.13)]
    assert min(late) >= 0
    if wakes:
        assert max(late) < 1e-6
    else:
        assert 1e-6 < max(late) <= MOST + 1e-3


def test_a_woken_waiter_polls_less(clock: ManualClock) -> None:
    reads = {}
    for wakes in (True, False):
        two = Two(clock, wakes=wakes)
        for _ in range(5):
            two.late_after(0.05)
        before = two.store.asked["read"]
        two.late_after(0.05)
        reads[wakes] = two.store.asked["read"] - before
    assert reads[True] <= 1
    assert reads[False] >= 3


class TestALostWakeUp:
    @pytest.fixture
    def two(self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Two:
        two = Two(clock)
        monkeypatch.setattr(two.store, "append_and_wake", two.store.append)
        return two

    @pytest.mark.parametrize("hold", [0.003, 0.4, 3.0])
    def test_the_lock_is_found_by_polling(self, two: Two, hold: float) -> None:
        late = [two.late_after(hold) for _ in range(10)]
        assert max(late) <= 0.1
        assert max(late[4:]) <= MOST + 1e-3, "it has noticed, and polls as without wake-ups"

    def test_they_may_come_again(self, two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(6):
            two.late_after(0.05)
        assert two.store.wake_ups is not None
        assert not two.store.wake_ups.come
        monkeypatch.undo()
        assert two.late_after(0.05) < 1e-6
        assert two.store.wake_ups.come


def test_a_lost_wake_up_costs_no_position(clock: ManualClock) -> None:
    """Of a waiter that came while another one of its process was first."""
    with gathering(clock, wakes=True) as crowd:
        crowd.comes("holder", hold=0.3)
        process = crowd.comes("first", after=0.01)
        crowd.comes("second", after=0.29, process=process)
        crowd.comes("third", after=0.43)
        crowd.ends()
        assert crowd.order == ["holder", "first", "second", "third"]


def test_a_wake_up_for_nothing_costs_one_poll(clock: ManualClock) -> None:
    two = Two(clock)
    wake = two.store.wake_ups
    assert wake is not None
    for _ in range(5):
        two.late_after(0.05)
    holder = two.elsewhere.acquire("ann")
    bells: list[Bell] = []
    begin = wake.begin
    wake.begin = lambda *args: (bells.append(args[-1]), begin(*args))[1]  # type: ignore

    def for_nothing() -> None:
        bells[0].ring(woken=True)

    clock.after(0.001, for_nothing)
    clock.after(0.05, lambda: two.elsewhere.release(holder))
    before = two.store.asked["read"]
    two.here.acquire("ann")
    assert two.store.asked["read"] - before <= 6
