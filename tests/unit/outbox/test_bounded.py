"""Engines with a client that hangs, raises, or answers too late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from userlock.outbox.engines import Wake
from userlock.outbox.engines.bounded import MOST_CALLS, BoundedEngine, Outcomes


class Engine(BoundedEngine):
    """Sends by a function."""

    def __init__(self, send: Callable[[Sequence[Wake], Outcomes], None]) -> None:
        self.function = send
        self.opened = self.closed = 0
        super().__init__("the engine")

    def send(self, messages: Sequence[Wake], outcomes: Outcomes, ends: float) -> None:
        self.function(messages, outcomes)

    def open_client(self) -> str:
        self.opened += 1
        return "the client"

    def close_client(self, client: str) -> None:
        assert client == "the client"
        self.closed += 1


MESSAGES = [Wake(str(number), f"name-{number}") for number in range(3)]


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Provide an event that ends the clients that hang."""
    event = threading.Event()
    yield event
    event.set()


def take_all(messages: Sequence[Wake], outcomes: Outcomes) -> None:
    for index in range(len(messages)):
        outcomes[index] = None


def test_a_client_that_hangs_costs_the_time_and_loses_no_outcome(released: threading.Event) -> None:
    def hang(messages: Sequence[Wake], outcomes: Outcomes) -> None:
        outcomes[0] = None
        outcomes[1] = ValueError("too long")
        released.wait()
        take_all(messages, outcomes)
        done.set()

    done = threading.Event()
    engine = Engine(hang)
    errors = engine.wake(MESSAGES, 0.2)
    while errors[0] is not None:  # on a busy machine the client's thread may begin later
        errors = engine.wake(MESSAGES, 0.2)
    expected = [
        "None",
        "the engine: ValueError: too long",
        "the engine: no answer within 0.2 s",
    ]
    assert [str(each) for each in errors] == expected
    released.set()
    assert done.wait(10)
    assert [str(each) for each in errors] == expected, "later outcomes change nothing"


@pytest.mark.parametrize("error", [ValueError("no"), OSError(), RecursionError()])
def test_a_client_that_raises(error: Exception) -> None:
    def fail(messages: Sequence[Wake], outcomes: Outcomes) -> None:
        outcomes[1] = None
        raise error

    errors = Engine(fail).wake(MESSAGES, 5)
    assert [each is None for each in errors] == [False, True, False]
    assert type(error).__name__ in str(errors[0])


def test_clients_that_hang_are_bounded(released: threading.Event) -> None:
    def hang(messages: Sequence[Wake], outcomes: Outcomes) -> None:
        released.wait()

    engine = Engine(hang)
    before = threading.active_count()
    for _ in range(MOST_CALLS + 20):
        (error,) = engine.wake(MESSAGES[:1], 0.0005)
    assert threading.active_count() - before <= MOST_CALLS
    assert "have not ended yet" in str(error)
    released.set()
    engine.function = take_all
    while engine.wake(MESSAGES, 5) != [None] * 3:
        pass  # until the threads have ended


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    engine = Engine(take_all)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(MOST_CALLS + 1):  # none keeps its place
            assert "can't start new thread" in str(engine.wake(MESSAGES, 5)[0])
    assert engine.wake(MESSAGES, 5) == [None] * 3


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_without_time_nothing_is_sent(timeout: float) -> None:
    def fail(messages: Sequence[Wake], outcomes: Outcomes) -> None:
        raise AssertionError("it was sent")

    errors = Engine(fail).wake(MESSAGES, timeout)
    assert {str(each) for each in errors} == {"the engine: there was no time left"}


def test_closed() -> None:
    engine = Engine(take_all)
    for _ in range(2):
        assert engine.client
    engine.close()
    engine.close()
    assert (engine.opened, engine.closed) == (1, 1)
    assert "closed" in str(engine.wake(MESSAGES, 5)[2])
    assert engine.wake([], 5) == []


def test_a_long_error_is_cut() -> None:
    def fail(messages: Sequence[Wake], outcomes: Outcomes) -> None:
        raise ValueError("x" * 1_000_000)

    assert len(str(Engine(fail).wake(MESSAGES, 5)[0])) <= 300
