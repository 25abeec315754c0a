"""The order graph by itself: what it reports, and what it keeps."""

from __future__ import annotations

import itertools
import threading

import pytest

from userlock.events import OutOfOrder
from userlock.lock import order
from userlock.lock.order import OrderGraph, Taken, describe


class TestGraph:
    """The graph alone. Places are made up: a code object and a number."""

    def place(self, number: int) -> Taken:
        return describe.__code__, number

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
