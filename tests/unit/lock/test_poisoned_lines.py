"""Any value under a lock's key: each log line stays one line of text."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import example, given

from tests.poison import TEXTS, unhurried, values
from userlock.errors import LockError
from userlock.events import LISTENERS
from userlock.lock import lease
from userlock.lock.service import LockService
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(logging.Formatter().format(record))


@contextmanager
def lines() -> Iterator[list[str]]:
    """Provide all lines of the library's log, down to DEBUG."""
    log, handler = logging.getLogger("userlock"), Lines()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield handler.said
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


def meet(value: bytes, lock_id: str = "ann", request: str = "") -> list[str]:
    """Return the log of a lock that is requested, lost, broken and requested again over a value."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    service = LockService(store, clock=clock, random=Random(1), listeners=LISTENERS)
    errors: list[str] = []
    with lines() as logged:
        ours = service.acquire(lock_id, request=request)
        store.forget_everything()
        store.create(lock_id, value, 60.0)
        run(service.extend, ours, 30.0)
        service.release(ours)
        for wait in (0.0, 0.5):
            try:
                service.release(service.acquire(lock_id, wait_timeout=wait))
            except LockError as error:
                errors.append(str(error))
        service.break_lock(lock_id, by=request or "ops")
    assert logged
    return logged + errors


@unhurried
@given(values)
@example(b'["4f01","interactive",1,60,"web","GET /"]\n! 4f01 ["\\ud800\\u001b[2J\\n",1,"4f05"]')
def test_each_is_one_line_of_text(value: bytes) -> None:
    assert all(line.isprintable() for line in meet(value))


@pytest.mark.parametrize("text", TEXTS)
def test_so_are_those_of_locks_and_requests_with_such_names(text: str) -> None:
    assert all(line.isprintable() for line in meet(b"", text, text))
    record = make_claim(text, request=text).record
    assert all(line.isprintable() for line in meet(record, text, text))


def test_written_as_it_is_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    record = make_claim("ann", request="GET /\nWARNING forged").record
    assert all(line.isprintable() for line in meet(record))
    monkeypatch.setattr(lease, "printable", str)
    monkeypatch.setattr(lease, "show_request", str)
    assert not all(line.isprintable() for line in meet(record))
