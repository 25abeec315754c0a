"""Deliveries to a real server: times, retries, limits, the state of the queue."""

from __future__ import annotations

import socket
import sqlite3
import threading
from typing import Any

import pytest

from tests.contract.emulator.tasks.conftest import LOCATION, QUEUE, Bench, started
from tests.contract.emulator.tasks.target import Received, Target
from userlock_emulator.tasks import attempts

DAY = 24 * 3600


def at(bench: Bench, seconds: float) -> dict[str, int]:
    whole, rest = divmod(bench.clock() + int(seconds * 1_000_000), 1_000_000)
    return {"seconds": whole, "nanos": rest * 1000}


def test_a_delivery(bench: Bench) -> None:
    bench.create(
        "a",
        http_request={
            "http_method": "PUT",
            "url": bench.target.url + "?x=1",
            "headers": {"Content-Type": "text/plain"},
            "body": b"hello",
        },
    )
    assert bench.settle() == ["a"]
    (received,) = bench.target.received
    assert (received.method, received.path, received.body) == ("PUT", "/do?x=1", b"hello")
    assert received.headers["Content-Type"] == "text/plain"
    assert received.headers["X-CloudTasks-QueueName"] == "q"
    assert not bench.exists("a")


def test_a_task_waits_for_its_time(bench: Bench) -> None:
    bench.create("later", schedule_time=at(bench, 100))
    bench.create("now")
    assert bench.settle() == ["now"]
    bench.clock.advance(99.9)
    assert bench.settle() == ["now"]
    assert bench.jump() == pytest.approx(0.1)
    assert bench.settle() == ["now", "later"]
    assert bench.server.next_time is None


def test_retries_until_a_success(bench: Bench) -> None:
    with Target() as other:
        statuses = iter([302, 404, 201])  # redirects are not followed
        bench.target.answer = lambda _: next(statuses)
        bench.target.headers["Location"] = other.url
        bench.create("a", http_request={"http_method": "HEAD"})
        bench.settle()
        shown = bench.get("a")
        assert (shown.dispatch_count, shown.response_count) == (1, 1)
        assert shown.last_attempt.response_status.message.endswith("HTTP status code 302")
        assert [bench.jump(), bench.jump()] == [pytest.approx(0.1), pytest.approx(0.2)]
        assert not other.received
    bench.create("b", http_request={"url": "http://127.0.0.1:1/"})  # where nobody listens
    bench.settle()
    shown = bench.get("b")
    assert shown.last_attempt.response_status.message.startswith("UNAVAILABLE(14): no response")
    assert shown.response_count == 0
    counts = [each.headers["X-CloudTasks-TaskRetryCount"] for each in bench.target.received]
    assert counts == ["0", "1", "2"]
    assert {each.method for each in bench.target.received} == {"HEAD"}
    assert not bench.exists("a")


def test_what_is_not_sent(bench: Bench) -> None:
    """Tasks of a paused queue, except those that are run; purged and deleted ones."""
    bench.client.pause_queue(name=QUEUE)
    for name in "ab":
        bench.create(name)
    assert bench.settle() == []
    bench.client.run_task(name=f"{QUEUE}/tasks/b")
    assert bench.settle() == ["b"]
    bench.client.resume_queue(name=QUEUE)
    assert bench.settle() == ["b", "a"]
    bench.create("purged", schedule_time=at(bench, 10))
    bench.client.purge_queue(name=QUEUE)
    for name in ("deleted", "c"):
        bench.create(name, schedule_time=at(bench, 10))
    bench.client.delete_task(name=f"{QUEUE}/tasks/deleted")
    bench.clock.advance(10)
    assert bench.settle() == ["b", "a", "c"]


def test_a_task_ends_after_31_days(bench: Bench) -> None:
    bench.client.pause_queue(name=QUEUE)
    bench.create("a")
    bench.clock.advance(31 * DAY)
    bench.settle()
    assert bench.exists("a")
    bench.clock.advance(61)
    bench.settle()
    assert not bench.exists("a")


def test_an_end_that_cannot_be_stored_is_stored_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk: nothing of the turn is kept, and it is repeated."""
    finish = attempts.finish
    failures = iter([sqlite3.OperationalError("database or disk is full")])

    def fail_once(*arguments: Any) -> None:
        for failure in failures:
            raise failure
        finish(*arguments)

    monkeypatch.setattr(attempts, "finish", fail_once)
    bench.create("a")
    bench.create("b")
    assert sorted(bench.settle()) == ["a", "b"]
    assert "a turn of the dispatcher failed" in caplog.text
    assert not bench.exists("a")
    assert not bench.exists("b")
    assert bench.server.next_time is None


class TestRates:
    def test_503_slows_the_whole_queue(self, bench: Bench) -> None:
        queue = f"{LOCATION}/queues/slow"
        bench.create_queue(
            queue,
            rate_limits={"max_dispatches_per_second": 1},
            retry_config={"min_backoff": {"seconds": 3600}},
        )
        bench.target.answer = lambda received: 503 if received.task == "bad" else 200
        bench.create("bad", queue=queue)
        bench.settle()
        bench.create("good", queue=queue)
        bench.clock.advance(1.1)
        assert bench.settle() == ["bad"]
        bench.clock.advance(1)
        assert bench.settle() == ["bad", "good"]


class TestConcurrency:
    def run(self, concurrent: int, count: int) -> Target:
        """Let real time pass: the target holds each request until others have arrived."""
        with Target() as target:

            def answer(_: Received) -> int:
                # As many as the limit allows are soon inside at once.
                with arrived:
                    arrived.wait_for(lambda: len(target.received) >= min(count, concurrent), 5)
                    arrived.notify_all()
                return 200

            arrived = threading.Condition()
            target.answer = answer
            with started(target) as bench:
                limits = {"max_concurrent_dispatches": concurrent}
                bench.client.update_queue(queue={"name": QUEUE, "rate_limits": limits})
                for _ in range(count):
                    bench.create()
        return target

    def test_many_tasks_within_the_bound(self) -> None:
        target = self.run(7, 300)
        assert len({each.task for each in target.received}) == len(target.received) == 300
        assert target.most == 7

    def test_without_the_bound_there_are_more(self) -> None:
        """The negative control."""
        assert self.run(50, 60).most > 7


class TestTargetsThatDoHarm:
    def test_one_that_never_answers_is_cut_off(self, bench: Bench) -> None:
        released = threading.Event()
        bench.target.answer = lambda _: 200 + released.wait(30)
        bench.create("a", dispatch_deadline={"seconds": 15})
        bench.target.wait_for(1)
        assert bench.server.in_flight == 1
        bench.clock.advance(14.9)
        bench.server.wake()
        assert bench.server.in_flight == 1
        bench.clock.advance(0.1)
        bench.settle()
        released.set()
        shown = bench.get("a")
        assert (shown.dispatch_count, shown.response_count) == (1, 0)
        assert shown.last_attempt.response_status.message.startswith("DEADLINE_EXCEEDED(4)")
        bench.jump()
        assert bench.target.received[1].headers["X-CloudTasks-TaskPreviousResponse"] == "504"

    def test_it_delays_no_other_queue(self, bench: Bench) -> None:
        released = threading.Event()

        def answer(received: Received) -> int:
            if received.headers["X-CloudTasks-QueueName"] == "q":
                released.wait(30)
            return 200

        bench.target.answer = answer
        bench.create_queue(f"{LOCATION}/queues/other")
        for number in range(20):
            bench.create(f"t{number}")
        bench.target.wait_for(20)
        bench.create("quick", queue=f"{LOCATION}/queues/other")
        bench.server.wait_empty(f"{LOCATION}/queues/other")
        assert bench.server.in_flight == 20
        released.set()
        bench.settle()

    @pytest.mark.parametrize(
        ("reply", "status"),
        [
            (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n" + b"x" * 3_000_000, 200),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                + b"1\r\nx\r\n" * 1_500_000,
                200,
            ),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", 503),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 503),
            (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", 503),
            (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", 503),
            (b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000, 503),
            (b"", 503),
            (b"\x00" * 300_000, 503),
        ],
    )
    def test_replies(self, bench: Bench, reply: bytes, status: int) -> None:
        """A reply without end, or that is none, is no success, and delays nobody."""
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(100_000)
                    try:
                        connection.sendall(reply)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(100_000):
                            pass
                    except OSError:
                        pass  # the emulator has read enough

            thread = threading.Thread(target=serve)
            thread.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            bench.create("a", http_request={"url": url})
            bench.settle()
            thread.join(10)
            assert not thread.is_alive()
        if status == 200:
            assert not bench.exists("a")
        else:
            assert bench.get("a").last_attempt.response_status.code == 14


class TestOtherMachines:
    @pytest.mark.parametrize(
        ("host", "called"),
        [
            *(
                (host, False)
                for host in (
                    "10.0.0.1", "0.0.0.0", "[::]", "2130706433", "localhost.example.com",
                )
            ),
            ("LOCALHOST", True),
            ("a.localhost", True),
        ],
    )  # fmt: skip
    def test_without_an_option_only_this_one_is_called(
        self, bench: Bench, host: str, called: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def look_up(*_: Any, **__: Any) -> Any:
            raise AssertionError("a name was looked up")

        bench.client.pause_queue(name=QUEUE)
        port = bench.target.address.rpartition(":")[2]
        bench.create("a", http_request={"url": f"http://{host}:{port}/"})
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        bench.client.resume_queue(name=QUEUE)
        bench.settle()
        if called:
            assert bench.target.received[0].headers["Host"] == f"{host}:{port}"
            return
        status = bench.get("a").last_attempt.response_status
        assert status.code == 7
        assert "--tasks-anywhere" in status.message
        assert not bench.target.received

    def test_they_are_by_an_option(self, target: Target) -> None:
        """The negative control: a name that only a look-up can resolve."""
        with started(target, anywhere=True) as bench:
            port = target.address.rpartition(":")[2]
            bench.create(http_request={"url": f"http://0.0.0.0:{port}/"})
        assert len(target.received) == 1
