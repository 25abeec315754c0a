"""Faults on demand. Each has a negative control: without it, everything happens once, in time."""

from __future__ import annotations

import pytest
from google.api_core import exceptions

from tests.contract.emulator.tasks.conftest import LOCATION, QUEUE, Bench, rest_client
from tests.contract.emulator.tasks.test_dispatch import at

OTHER = f"{LOCATION}/queues/other"


def test_without_faults(bench: Bench) -> None:
    for name in "abc":
        bench.create(name)
    assert sorted(bench.settle()) == ["a", "b", "c"]
    bench.clock.advance(3600)
    assert sorted(bench.settle()) == ["a", "b", "c"]
    assert bench.server.next_time is None


def test_a_duplicate_by_queue_and_count(bench: Bench) -> None:
    bench.create_queue(OTHER)
    with bench.server.faults.duplicate(2, queue="other", skip=1) as fault:
        bench.create("a")
        bench.settle()
        for number in range(4):
            bench.create(f"t{number}", queue=OTHER)
            bench.settle()
        assert fault.hits == 2
    assert bench.settle() == ["a", "t0", "t1", "t1", "t2", "t2", "t3"]
    counts = [each.headers["X-CloudTasks-TaskRetryCount"] for each in bench.target.received]
    assert sorted(counts[2:4]) == ["0", "1"], "both at once"
    bench.server.faults.duplicate(queue=OTHER)
    bench.create("b")
    assert bench.settle()[7:] == ["b"]


def test_a_lost_answer(bench: Bench) -> None:
    """The task has succeeded, and comes again."""
    bench.server.faults.lose_answer()
    bench.create("a")
    assert bench.settle() == ["a"]
    shown = bench.get("a")
    assert (shown.dispatch_count, shown.response_count) == (1, 0)
    bench.jump()
    assert bench.settle() == ["a", "a"]
    assert not bench.exists("a")


def test_late(bench: Bench) -> None:
    bench.server.faults.late(30)
    created = bench.clock()
    bench.create("a")
    bench.create("b")
    assert bench.settle() == ["b"]
    assert bench.jump() == 30
    assert bench.settle() == ["b", "a"]
    # The time that it was meant for is told.
    eta = float(bench.target.received[1].headers["X-CloudTasks-TaskETA"])
    assert eta == pytest.approx(created / 1_000_000, abs=1e-3)


def test_early(bench: Bench) -> None:
    for name, seconds in (("b", 200), ("a", 100)):
        bench.create(name, schedule_time=at(bench, seconds))
    assert bench.settle() == []
    bench.server.faults.early()
    assert bench.settle() == ["a"]
    eta = float(bench.target.received[0].headers["X-CloudTasks-TaskETA"])
    assert eta == pytest.approx(bench.clock() / 1_000_000 + 100, abs=1e-3)
    bench.clock.advance(200)
    assert bench.settle() == ["a", "b"]


def test_never(bench: Bench) -> None:
    fault = bench.server.faults.never(queue="q")
    bench.create("a")
    bench.create("b")
    assert bench.settle() == ["b"]
    bench.clock.advance(30 * 24 * 3600)
    assert bench.settle() == ["b"]
    assert bench.server.next_time is None
    assert bench.exists("a")
    assert fault.hits == 1
    bench.client.run_task(name=f"{QUEUE}/tasks/a")
    assert bench.settle() == ["b", "a"]


class TestDropReply:
    def test_the_task_was_created(self, bench: Bench) -> None:
        bench.server.faults.drop_reply(2)
        with pytest.raises(exceptions.ServiceUnavailable, match="Socket closed"):
            bench.create("a")
        assert bench.settle() == ["a"]
        with pytest.raises(exceptions.ServiceUnavailable):
            rest_client(bench.server.host).create_task(
                parent=QUEUE, task={"http_request": {"url": bench.target.url}}
            )
        assert len(bench.settle()) == 2
        with pytest.raises(exceptions.AlreadyExists):
            bench.create("a")


class TestUnavailable:
    def test_by_count_and_rpc(self, bench: Bench) -> None:
        bench.server.faults.unavailable(2, rpc="CreateTask", queue="q")
        bench.create_queue(OTHER)
        bench.create("c", queue=OTHER)
        for _ in range(2):
            with pytest.raises(exceptions.ServiceUnavailable):
                bench.create("a")
        bench.client.get_queue(name=QUEUE, retry=None)
        bench.create("a")
        assert sorted(bench.settle()) == ["a", "c"]

    def test_by_time(self, bench: Bench) -> None:
        bench.server.faults.outage(60)
        for wait in (0, 59.9):
            bench.clock.advance(wait)
            with pytest.raises(exceptions.ServiceUnavailable):
                bench.create("a")
            with pytest.raises(exceptions.ServiceUnavailable):
                bench.client.get_queue(name=QUEUE, retry=None)
        bench.clock.advance(0.1)
        assert not bench.server.faults.planted
        bench.create("a")
        assert bench.settle() == ["a"]
