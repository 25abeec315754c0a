"""The order graph, and what is reported of it: with the application's lines."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

import userlock
from userlock import LockService
from userlock.events import Event, OutOfOrder
from userlock.lock import order
from userlock.lock.order import OrderGraph, Taken, describe
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


def line() -> int:
    """The line that calls this."""
    return sys._getframe(1).f_lineno


def at(place: str, number: int) -> bool:
    """Whether a reported place is that line of this file."""
    return place.startswith(f"{__file__}:{number} in ")


class TestGraph:
    """The graph alone. Places are made up: a code object and a number."""

    def place(self, number: int) -> Taken:
        return line.__code__, number

    def take(self, graph: OrderGraph, held: str, wanted: str, number: int) -> list[OutOfOrder]:
        return graph.note([(held, self.place(number))], wanted, self.place(number + 1))

    def test_in_canonical_order_nothing_is_reported(self) -> None:
        graph = OrderGraph()
        assert self.take(graph, "a", "b", 0) == []
        assert self.take(graph, "b", "c", 2) == []
        assert self.take(graph, "a", "c", 4) == []

    def test_the_canonical_order_is_that_of_strings(self) -> None:
        graph = OrderGraph()
        assert self.take(graph, "10", "9", 0) == []
        assert len(self.take(graph, "9", "10", 2)) == 1

    def test_against_it_is_reported_even_if_nobody_keeps_to_it(self) -> None:
        (report,) = self.take(OrderGraph(), "b", "a", 0)
        assert (report.lock_id, report.held_lock_id) == ("a", "b")
        assert report.opposite_at == ""

    def test_two_the_other_way_round_are_reported_with_both_places(self) -> None:
        graph = OrderGraph()
        first = self.place(1)
        self.take(graph, "a", "b", 0)
        (report,) = self.take(graph, "b", "a", 40)
        assert report.opposite_at == describe(first)

    def test_who_keeps_to_the_order_is_not_reported_for_those_who_do_not(self) -> None:
        graph = OrderGraph()
        assert len(self.take(graph, "b", "a", 0)) == 1
        assert self.take(graph, "a", "b", 40) == []
        assert self.take(graph, "a", "b", 60) == []

    def test_a_pair_of_places_is_reported_once(self) -> None:
        graph = OrderGraph()
        assert len(self.take(graph, "b", "a", 0)) == 1
        assert self.take(graph, "b", "a", 0) == []
        assert self.take(graph, "y", "x", 0) == [], "of other locks, by the same code"
        assert len(self.take(graph, "b", "a", 40)) == 1, "other code"

    def test_and_once_more_when_somebody_turns_out_to_do_the_opposite(self) -> None:
        graph = OrderGraph()
        assert [r.opposite_at for r in self.take(graph, "b", "a", 0)] == [""]
        self.take(graph, "a", "b", 40)
        assert [r.opposite_at for r in self.take(graph, "b", "a", 0)] == [describe(self.place(41))]
        assert self.take(graph, "b", "a", 0) == []

    def test_what_was_reported_with_its_opposite_is_not_reported_without(self) -> None:
        graph = OrderGraph()
        self.take(graph, "a", "b", 40)
        assert len(self.take(graph, "b", "a", 0)) == 1
        assert self.take(graph, "d", "c", 0) == []

    @pytest.mark.parametrize("length", [3, 4, 16])
    def test_longer_circles_through_the_graph(self, length: int) -> None:
        """a → b, b → c, … each in order, and the last one back to a."""
        graph = OrderGraph()
        names = [f"lock-{number:02}" for number in range(length)]
        for number, (one, other) in enumerate(itertools.pairwise(names)):
            assert self.take(graph, one, other, 10 * number) == []
        (report,) = self.take(graph, names[-1], names[0], 900)
        last_step = self.place(10 * (length - 2) + 1)
        assert report.opposite_at == describe(last_step)

    def test_a_way_that_leads_elsewhere_is_none(self) -> None:
        graph = OrderGraph()
        self.take(graph, "a", "b", 0)
        self.take(graph, "x", "c", 10)
        (report,) = self.take(graph, "c", "a", 20)
        assert report.opposite_at == ""

    def test_each_that_is_held_is_judged(self) -> None:
        graph = OrderGraph()
        held = [("b", self.place(0)), ("c", self.place(4)), ("a", self.place(8))]
        reports = graph.note(held, "aa", self.place(12))
        assert [report.held_lock_id for report in reports] == ["b", "c"]
        assert graph.note(held, "aa", self.place(12)) == []

    def test_the_same_lock_in_an_outer_scope_is_no_matter_of_order(self) -> None:
        graph = OrderGraph()
        assert self.take(graph, "a", "a", 0) == []
        self.take(graph, "a", "b", 10)
        self.take(graph, "b", "a", 20)
        assert self.take(graph, "a", "a", 30) == []

    def test_memory_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order, "_MOST_EDGES", 50)
        graph = OrderGraph()
        for number in range(500):
            self.take(graph, f"{number:04}", f"{number + 1:04}", 0)
        assert len(graph._edges) == 50
        assert sum(len(each) for each in graph._after.values()) == 50
        assert len(graph._after) == 50
        # The latest are the ones that are known.
        (report,) = self.take(graph, "0500", "0460", 100)
        assert report.opposite_at
        (report,) = self.take(graph, "0300", "0260", 200)
        assert report.opposite_at == ""

    def test_so_are_the_reports(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order, "_MOST_REPORTS", 10)
        graph = OrderGraph()
        reports = [self.take(graph, "b", "a", 2 * number) for number in range(100)]
        assert sum(map(len, reports)) == 10

    def test_looking_for_a_way_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also in a large graph with circles in it, soon."""
        monkeypatch.setattr(order, "_MOST_STEPS", 20)
        graph = OrderGraph()
        for number in range(100):
            self.take(graph, f"{number:04}", f"{number + 1:04}", 0)
            self.take(graph, f"{number + 1:04}", f"{number:04}", 0)
        (report,) = self.take(graph, "zzz", "0050", 100)
        assert report.opposite_at == ""

    def test_threads_may_note_at_the_same_time(self) -> None:
        graph = OrderGraph()
        reports: list[OutOfOrder] = []
        begin = threading.Barrier(8)

        def work() -> None:
            begin.wait()
            for number in range(200):
                reports.extend(self.take(graph, f"b{number}", f"a{number}", 0))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(reports) == 1
        assert len(graph._edges) == 200

    def test_a_place_that_is_not_known_is_said_so(self) -> None:
        assert describe(None) == "a place that was not noted"


class TestReports:
    """Through the public statements."""

    @pytest.fixture(autouse=True)
    def _configured(self, service: LockService) -> None:
        userlock.configure(service=service)

    @pytest.fixture
    def reports(self, events: list[Event]) -> Reports:
        return Reports(events)

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


class Reports:
    """The reports among the events."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def all(self) -> list[OutOfOrder]:
        return [event for event in self._events if isinstance(event, OutOfOrder)]

    def only(self) -> OutOfOrder:
        (report,) = self.all()
        return report
