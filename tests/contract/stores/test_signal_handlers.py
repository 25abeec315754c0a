"""A signal handler raises what looks like the server's trouble: its error is the caller's."""

from __future__ import annotations

import functools
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from userlock import LockService
from userlock.stores import pool


@pytest.fixture(params=["memcache", "redis"])
def service(request: pytest.FixtureRequest) -> Iterator[LockService]:
    """Provide a service whose server takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"{request.param}://127.0.0.1:{server.getsockname()[1]}"
        service = LockService.from_url(url, outage="optimistic")
        yield service
        service.close()


class _Handler:
    def __init__(self, kind: type[OSError]) -> None:
        self._kind = kind

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise self._kind("the alarm")

    def method(self, number: int, frame: FrameType | None) -> None:
        self(number, frame)


class Handler(_Handler):
    """One whose `__call__` is inherited."""


FORMS: dict[str, Callable[[Handler], Any]] = {
    "object": lambda handler: handler,
    "method": lambda handler: handler.method,
    "function": lambda handler: lambda number, frame: handler(number, frame),
    "partial": lambda handler: functools.partial(lambda given, *args: given(*args), handler),
}


def alarm_in(seconds: float, handler: Any) -> None:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.fixture(autouse=True)
def former() -> Iterator[None]:
    former = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [TimeoutError, ConnectionResetError])
def test_it_reaches_the_caller(service: LockService, kind: type[OSError], form: str) -> None:
    alarm_in(0.02, FORMS[form](Handler(kind)))
    with pytest.raises(kind, match="the alarm"):
        service.acquire("ann")


def test_control(service: LockService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for the server's, it lets the caller go on without the lock."""
    monkeypatch.setattr(pool, "raise_interrupt", lambda _: None)
    alarm_in(0.02, Handler(TimeoutError))
    assert service.acquire("ann").degraded
