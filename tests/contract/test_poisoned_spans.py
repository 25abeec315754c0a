"""Any value under a lock's key: spans name it as text, and it creates no time series."""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from hypothesis import example, given

from tests.contract.test_opentelemetry import Backend
from tests.poison import unhurried, values
from userlock.errors import LockError
from userlock.events import Listeners
from userlock.lock import lease
from userlock.lock.service import LockService
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim

KNOWN = {"acquired", "timed_out", "released", "lost", "interactive", "LockTimeout"}


def reported(value: bytes) -> tuple[list[str], set[str]]:
    """Return the texts of spans and of metrics for a lock that is requested over a value."""
    clock, backend = ManualClock(), Backend()
    store = MemoryStore(clock=clock)
    listeners = Listeners([backend.listener()])
    service = LockService(store, clock=clock, random=Random(1), listeners=listeners)
    store.create("ann", value, 60.0)
    for wait in (0.0, 0.5):
        with contextlib.suppress(LockError):
            service.release(service.acquire("ann", wait_timeout=wait))
    spans = [
        word
        for span in backend.spans()
        for word in (span.name, *(span.attributes or {}).values())
        if isinstance(word, str)
    ]
    metrics = {
        word
        for points in backend.metrics().values()
        for attributes in points
        for _, word in attributes
        if isinstance(word, str)
    }
    assert spans
    return spans, metrics


@unhurried
@given(values)
@example(b'["4f01","\\ud800\\u001b[2J",1,60,"web\\n","GET /\\u202e"]')
def test_spans_say_it_as_text_and_metrics_not_at_all(value: bytes) -> None:
    spans, metrics = reported(value)
    assert all(word.isprintable() and len(word) < 1000 for word in spans)
    assert metrics <= KNOWN


def test_written_as_it_is_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    record = make_claim("ann", request="\x1b[2J").record
    assert all(word.isprintable() for word in reported(record)[0])
    monkeypatch.setattr(lease, "printable", str)
    monkeypatch.setattr(lease, "show_request", str)
    assert not all(word.isprintable() for word in reported(record)[0])
