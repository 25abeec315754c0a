"""What is reported of the order of locks, with the application's lines; and what is not."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

import userlock
from userlock import LockService
from userlock.events import Event, OutOfOrder
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


def line() -> int:
    """The line that calls this."""
    return sys._getframe(1).f_lineno


def at(place: str, number: int) -> bool:
    """Whether a reported place is that line of this file."""
    return place.startswith(f"{__file__}:{number} in ")


@pytest.fixture
def reports(events: list[Event]) -> Reports:
    return Reports(events)


@pytest.mark.usefixtures("configured")
class TestReports:
    """Through the public statements."""

    def test_with(self, reports: Reports) -> None:
        with userlock.global_lock("a"), userlock.global_lock("b"):
            in_order = line() - 1
        with userlock.global_lock("b"):
            held = line() - 1
            with userlock.global_lock("a"):
                taken = line() - 1
        report = reports.only()
        assert (report.lock_id, report.held_lock_id) == ("a", "b")
        assert at(report.taken_at, taken)
        assert at(report.held_at, held)
        assert at(report.opposite_at, in_order)

    def test_one_with_of_several_lines(self, reports: Reports) -> None:
        with (
            userlock.global_lock("b"),
            userlock.global_lock("a"),
        ):
            last = line()
        report = reports.only()
        # Python ascribes all of it to the first line, or each to its own.
        assert any(at(report.held_at, number) for number in (last - 4, last - 3))
        assert any(at(report.taken_at, number) for number in (last - 4, last - 2))

    def test_decorators(self, reports: Reports) -> None:
        """Where the decorated function is called."""

        @userlock.global_lock("a")
        def inner() -> None:
            pass

        @userlock.global_lock("b")
        def outer() -> int:
            inner()
            return line() - 1

        taken = outer()
        held = line() - 1
        report = reports.only()
        assert at(report.taken_at, taken)
        assert at(report.held_at, held)

    def test_exit_stack(self, reports: Reports) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(userlock.global_lock("b"))
            stack.enter_context(userlock.global_lock("a"))
            last = line()
        report = reports.only()
        assert at(report.held_at, last - 2)
        assert at(report.taken_at, last - 1)

    def test_acquire_lock(self, reports: Reports) -> None:
        with userlock.scope():
            userlock.acquire_lock("b")
            userlock.acquire_lock("a")
            last = line()
        report = reports.only()
        assert at(report.held_at, last - 2)
        assert at(report.taken_at, last - 1)

    def test_global_locks(self, reports: Reports) -> None:
        with userlock.global_lock("c"), userlock.global_locks(["b", "a"]):
            taken = line() - 1
        assert [report.lock_id for report in reports.all()] == ["a"], "the same two places"
        assert at(reports.only().taken_at, taken)

    def test_global_locks_as_a_decorator(self, reports: Reports) -> None:
        @userlock.global_locks(["a", "b"])
        def inner() -> None:
            pass

        with userlock.global_lock("c"):
            inner()
            taken = line() - 1
        assert at(reports.only().taken_at, taken)

    def test_with_extension(self, reports: Reports) -> None:
        def operator(extend: object) -> None:
            with userlock.global_lock("a"):
                pass

        userlock.with_extension("b", operator, lock_timeout=10)
        held = line() - 1
        report = reports.only()
        assert at(report.held_at, held)
        assert "operator" in report.taken_at

    def test_a_helper_of_the_application_is_its_own_line(self, reports: Reports) -> None:
        @contextlib.contextmanager
        def locked(name: str) -> Iterator[None]:
            with userlock.global_lock(name):
                yield

        with locked("b"), locked("a"):
            pass
        assert "locked" in reports.only().taken_at

    def test_an_outer_scope_counts(self, reports: Reports) -> None:
        with userlock.global_lock("b"), userlock.scope(), userlock.global_lock("a"):
            pass
        assert reports.only().held_lock_id == "b"

    def test_the_log_line(self, reports: Reports, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "userlock"):
            with userlock.global_lock("a"), userlock.global_lock("b"):
                pass
            with userlock.global_lock("b"), userlock.global_lock("a"):
                pass
        (record,) = caplog.records
        report = reports.only()
        message = record.getMessage()
        assert record.levelno == logging.WARNING
        assert record.userlock == report  # type: ignore[attr-defined]
        assert message.startswith(f"lock 'a' taken out of order at {report.taken_at}")
        assert f"while 'b' is held, taken at {report.held_at}" in message
        assert f"the other way round at {report.opposite_at}" in message
        assert "global_locks" in message

    def test_the_log_line_without_an_opposite(self, caplog: pytest.LogCaptureFixture) -> None:
        with (
            caplog.at_level(logging.WARNING, "userlock"),
            userlock.global_lock("b"),
            userlock.global_lock("a"),
        ):
            pass
        assert "the other way round" not in caplog.text

    # --- what is not reported ---------------------------------------------------------------

    def test_not_the_canonical_order(self, reports: Reports) -> None:
        with userlock.global_lock("a"), userlock.global_lock("b"), userlock.global_lock("c"):
            pass
        with userlock.global_lock("a"), userlock.global_lock("c"):
            pass
        assert reports.all() == []

    def test_not_re_entrance(self, reports: Reports) -> None:
        with (
            userlock.global_lock("a"),
            userlock.global_lock("b"),
            userlock.global_lock("a"),
            userlock.global_lock("b"),
        ):
            pass
        assert reports.all() == []

    def test_not_global_locks_in_whatever_order_they_are_given(self, reports: Reports) -> None:
        for names in (["a", "b", "c"], ["c", "a", "b"], ["b", "c", "a"], ["c", "b", "a"]):
            with userlock.global_locks(names):
                pass
        assert reports.all() == []

    def test_not_locks_of_different_services(self, reports: Reports, clock: ManualClock) -> None:
        other = LockService(MemoryStore(clock=clock), clock=clock)
        with (
            userlock.global_lock("b"),
            userlock.scope(other),
            userlock.global_lock("a"),
        ):
            pass
        assert reports.all() == []

    def test_not_one_after_the_other(self, reports: Reports) -> None:
        for name in ("b", "a", "b"):
            with userlock.global_lock(name):
                pass
        assert reports.all() == []

    def test_not_who_does_not_wait(self, reports: Reports) -> None:
        """The usual way to take what comes before: try, and leave it when it is held."""
        with userlock.global_lock("b"):
            with userlock.global_lock("a", wait_timeout=0):
                pass
            assert reports.all() == []
            with userlock.global_lock("a", wait_timeout=0.1):
                pass
        assert len(reports.all()) == 1

    def test_not_what_another_thread_holds_in_the_same_scope(self, reports: Reports) -> None:
        def work() -> None:
            with userlock.global_lock("a"):
                pass

        with userlock.scope():
            userlock.acquire_lock("b")
            thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
            thread.start()
            thread.join()
        assert reports.all() == []

    def test_but_what_another_task_of_the_thread_holds(self, reports: Reports) -> None:
        """Its lock stays held while this one waits, because the whole thread does."""

        async def take(name: str) -> None:
            with userlock.global_lock(name):
                await asyncio.sleep(0)

        async def both() -> None:
            with userlock.scope():
                await asyncio.gather(take("b"), take("a"))

        asyncio.run(both())
        assert reports.only().held_lock_id == "b"


@pytest.mark.usefixtures("configured")
class TestReactions:
    """`lock_order`: what becomes of what is reported."""

    def test_raised_each_time_and_before_the_lock_is_taken(
        self, service: LockService, reports: Reports
    ) -> None:
        userlock.configure(lock_order="raise")
        for _ in range(2):
            with userlock.global_lock("b"):
                held = line() - 1
                with pytest.raises(userlock.LockOutOfOrder) as caught:
                    userlock.acquire_lock("a")
                assert service.holder("a") is None
                assert service.holder("b") is not None
        error = caught.value
        assert (error.lock_id, error.held_lock_id) == ("a", "b")
        assert at(error.taken_at, held + 3)
        assert at(error.held_at, held)
        assert error.opposite_at == ""
        assert "global_locks" in str(error)
        assert len(reports.all()) == 2
        assert userlock.current_scope() is None

    def test_raised_although_it_was_reported_before(self) -> None:
        def out_of_order() -> None:
            with userlock.global_lock("b"), userlock.global_lock("a"):
                pass

        out_of_order()
        userlock.configure(lock_order="raise")
        with pytest.raises(userlock.LockOutOfOrder):
            out_of_order()

    def test_the_other_way_round_is_named(self) -> None:
        userlock.configure(lock_order="raise")
        with userlock.global_lock("a"), userlock.global_lock("b"):
            in_order = line() - 1
        with (
            userlock.global_lock("b"),
            pytest.raises(userlock.LockOutOfOrder, match="the other way round at") as caught,
            userlock.global_lock("a"),
        ):
            pass
        assert at(caught.value.opposite_at, in_order)

    def test_what_does_not_wait_is_not_refused(self) -> None:
        userlock.configure(lock_order="raise")
        with userlock.global_lock("b"), userlock.global_lock("a", wait_timeout=0):
            pass

    def test_off_says_nothing(self, reports: Reports) -> None:
        userlock.configure(lock_order="off")
        with userlock.global_lock("b"), userlock.global_lock("a"):
            pass
        assert reports.all() == []

    def test_another_word_is_refused(self) -> None:
        with pytest.raises(ValueError, match="lock_order must be 'off', 'warn' or 'raise'"):
            userlock.configure(lock_order="error")


class Reports:
    """The reports among the events."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def all(self) -> list[OutOfOrder]:
        return [event for event in self._events if isinstance(event, OutOfOrder)]

    def only(self) -> OutOfOrder:
        (report,) = self.all()
        return report
