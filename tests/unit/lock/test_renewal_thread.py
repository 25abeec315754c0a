"""The renewal thread: the tasks that it calls, their times, and its robustness."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from tests.forks import in_child
from tests.waiting import wait_until
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.renewal import RenewalThread
from userlock.testing import ManualClock

#: Schedules a task as its module is torn down.
_LATE = """
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.renewal import RenewalThread

class Late:
    def __init__(self):
        self.renewals = RenewalThread(SYSTEM_CLOCK, threaded=True)
    def __del__(self):
        self.renewals.schedule(self, 0.0)

late = Late()
"""


class Recording:
    def __init__(self, *pauses: float | None) -> None:
        self._pauses = list(pauses)
        self.calls: list[float] = []

    def _when_due(self, now: float) -> float | None:
        self.calls.append(now)
        pause = self._pauses.pop(0) if self._pauses else None
        return None if pause is None else now + pause


class Failing(Recording):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def _when_due(self, now: float) -> float | None:
        super()._when_due(now)
        raise self._error


@pytest.fixture
def renewals(clock: ManualClock) -> RenewalThread:
    return RenewalThread(clock, threaded=False)


class TestWhen:
    def test_a_task_is_called_when_it_is_due_and_not_before(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        start = clock.now()
        task = Recording(3.0, 0.5)
        renewals.schedule(task, start + 2)
        while (due := renewals.run_due()) is not None:
            clock.advance(due - clock.now())
        assert task.calls == [start + 2, start + 5, start + 5.5]
        assert len(renewals) == 0

    def test_each_task_has_its_own_time(self, renewals: RenewalThread, clock: ManualClock) -> None:
        start = clock.now()
        tasks = [Recording() for _ in range(5)]
        for number in (3, 1, 4, 0, 2):
            renewals.schedule(tasks[number], start + number)
        clock.advance(2)
        assert renewals.run_due() == start + 3
        assert [len(task.calls) for task in tasks] == [1, 1, 1, 0, 0]

    @pytest.mark.parametrize("seconds", [1.0, 5.0])
    def test_a_rescheduled_task_has_only_its_new_time(
        self, renewals: RenewalThread, clock: ManualClock, seconds: float
    ) -> None:
        """Sooner or later than before."""
        start = clock.now()
        task = Recording()
        renewals.schedule(task, start + 3)
        renewals.schedule(task, start + seconds)
        for _ in range(20):
            clock.advance(0.5)
            renewals.run_due()
        assert task.calls == [start + seconds]

    def test_a_task_may_schedule_itself_during_its_call(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        start = clock.now()

        class Eager(Recording):
            def _when_due(self, now: float) -> float | None:
                super()._when_due(now)
                if len(self.calls) == 1:
                    renewals.schedule(self, now + 1)
                    return now + 100
                return None

        task = Eager()
        renewals.schedule(task, start)
        assert renewals.run_due() == start + 1
        clock.advance(200)
        renewals.run_due()
        assert len(task.calls) == 2
        assert len(renewals) == 0


class TestForgetting:
    def test_the_garbage_collector_may_schedule_one_meanwhile(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        """It may release a lock at any line, here at a comparison."""
        tasks, start = [Recording() for _ in range(3)], clock.now()
        released = Recording()
        runs = False

        class Collecting(float):
            def __lt__(self, other: float) -> bool:
                if runs:
                    renewals.schedule(released, start + 9)
                return float(self) < other

        for task in tasks:
            renewals.schedule(task, Collecting(start))
        runs = True
        assert renewals.run_due() == start + 9
        assert [task.calls for task in tasks] == [[start]] * 3

    def test_an_unreferenced_task_is_forgotten(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        task = Recording()
        calls = task.calls
        renewals.schedule(task, clock.now() + 1)
        assert len(renewals) == 1
        del task
        gc.collect()
        assert len(renewals) == 0
        clock.advance(2)
        assert renewals.run_due() is None
        assert calls == []


class TestErrors:
    def test_an_error_is_logged_and_the_task_called_again(
        self, renewals: RenewalThread, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad, good = Failing(ValueError("what is this")), Recording()
        renewals.schedule(bad, clock.now())
        renewals.schedule(good, clock.now())
        renewals.run_due()
        assert len(good.calls) == 1
        assert "what is this" in caplog.text
        clock.advance(1.1)
        renewals.run_due()
        assert len(bad.calls) == 2


class TestThread:
    @pytest.fixture
    def real(self) -> RenewalThread:
        return RenewalThread(SYSTEM_CLOCK, threaded=True)

    def test_it_begins_with_the_first_task_and_there_is_one(self, real: RenewalThread) -> None:
        before = set(threading.enumerate())
        tasks = [Recording() for _ in range(100)]
        for task in tasks:
            real.schedule(task, SYSTEM_CLOCK.now())
        wait_until(lambda: all(task.calls for task in tasks))
        assert real._thread is not None
        assert set(threading.enumerate()) - before == {real._thread}
        assert (real._thread.name, real._thread.daemon) == ("userlock-renewal", True)

    def test_a_task_that_is_due_sooner_than_the_others_is_called_in_time(
        self, real: RenewalThread
    ) -> None:
        late, soon = Recording(), Recording()
        real.schedule(late, SYSTEM_CLOCK.now() + 1000)
        real.schedule(soon, SYSTEM_CLOCK.now() + 0.05)
        wait_until(lambda: bool(soon.calls))
        assert late.calls == []

    @pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
    def test_no_exception_of_a_task_ends_the_thread(
        self, real: RenewalThread, error: type[BaseException]
    ) -> None:
        bad, good = Failing(error()), Recording(0.01, 0.01)
        real.schedule(bad, SYSTEM_CLOCK.now())
        wait_until(lambda: bool(bad.calls))
        thread = real._thread
        real.schedule(good, SYSTEM_CLOCK.now())
        wait_until(lambda: len(good.calls) == 3)
        assert real._thread is thread

    def test_a_process_that_cannot_start_threads_works_without(
        self, real: RenewalThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its locks are held until their leases end; the next lock tries again."""
        first, second = Recording(), Recording()

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            real.schedule(first, SYSTEM_CLOCK.now())
        assert "leases are not renewed" in caplog.text
        real.schedule(second, SYSTEM_CLOCK.now())
        wait_until(lambda: bool(first.calls and second.calls))

    def test_none_is_started_while_the_interpreter_ends(self) -> None:
        """Python 3.11 would wait for it for ever."""
        ended = subprocess.run(
            [sys.executable, "-c", _LATE], capture_output=True, text=True, timeout=60, check=True
        )
        assert ended.stderr == ""

    def test_a_forked_child_has_none_of_its_parents_tasks(self, real: RenewalThread) -> None:
        """Also if the fork happens while the parent's thread works."""
        task = Recording(*[0.001] * 100_000)
        real.schedule(task, SYSTEM_CLOCK.now())
        wait_until(lambda: len(task.calls) > 3)

        def begin_again() -> None:
            inherited = len(task.calls)
            assert len(real) == 0
            own = Recording()
            real.schedule(own, SYSTEM_CLOCK.now())
            wait_until(lambda: bool(own.calls))
            assert len(task.calls) == inherited

        in_child(begin_again)
        calls = len(task.calls)
        wait_until(lambda: len(task.calls) > calls)
