"""The output of OpenTelemetry's SDK: metrics, and spans in the caller's trace."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import userlock
from userlock import ids
from userlock.contrib.opentelemetry import (
    BUCKETS,
    OpenTelemetryListener,
    instrument,
)
from userlock.errors import (
    DeadlockDetected,
    EntityExistsError,
    LockTimeout,
    PutWithoutLock,
)
from userlock.events import (
    Acquired,
    Broken,
    Confirmed,
    Conflict,
    Contended,
    Deadlock,
    Degraded,
    Event,
    Extended,
    LeaseLost,
    Listeners,
    Rejected,
    Released,
    StaleWrite,
    TimedOut,
    Unavailable,
    Violation,
)
from userlock.lock.service import LockService
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

NOW_NS = 1_763_640_000_000_000_000

FREE = Acquired("ann", "interactive", 0.0004, 1, "", degraded=False)
WAITED = Acquired("ann", "batch", 0.25, 7, "POST /answers (interactive)", degraded=False)
DEGRADED = Acquired("ann", "interactive", 0.3, 1, "", degraded=True)
TIMED_OUT = TimedOut("ann", "interactive", 2.0, "POST /answers (interactive)")
REJECTED = Rejected("ann", "interactive", 0.001, "POST /answers (interactive)", waiting=5)
UNAVAILABLE = Unavailable("ann", "interactive", 0.4, "", "connection refused")
DEADLOCK = Deadlock("ann", "batch", 0.03, "POST /answers (interactive)", "'ann' is held by …")


class Backend:
    """An SDK that keeps its data in memory."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def listener(self, **options: Any) -> OpenTelemetryListener:
        return OpenTelemetryListener(
            meter_provider=self.meters,
            tracer_provider=self.tracers,
            time_ns=lambda: NOW_NS,
            **options,
        )

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def metrics(self) -> dict[str, dict[tuple[tuple[str, object], ...], Any]]:
        """Return each metric's points by their attributes."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: {
                tuple(sorted((point.attributes or {}).items())): point
                for point in metric.data.data_points
            }
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def counted(self, metric: str) -> dict[tuple[tuple[str, object], ...], int]:
        return {
            attributes: point.value for attributes, point in self.metrics().get(metric, {}).items()
        }


@pytest.fixture
def backend() -> Backend:
    return Backend()


def asked(outcome: str, priority: str, contended: bool) -> tuple[tuple[str, object], ...]:
    return (
        ("userlock.contended", contended),
        ("userlock.outcome", outcome),
        ("userlock.priority", priority),
    )


def violation() -> Violation:
    error = PutWithoutLock(key=None, kind="User", lock_id="ann", read_at=None, put_at="app.py:3")
    return Violation("ann", error, enforced=False)


class TestMetrics:
    def test_acquisitions_are_counted_by_how_they_ended(self, backend: Backend) -> None:
        listener = backend.listener()
        for event in (FREE, FREE, WAITED, DEGRADED, TIMED_OUT, REJECTED, UNAVAILABLE, DEADLOCK):
            listener(event)
        assert backend.counted("userlock.acquisitions") == {
            asked("acquired", "interactive", False): 2,
            asked("acquired", "batch", True): 1,
            asked("degraded", "interactive", False): 1,
            asked("timed_out", "interactive", True): 1,
            asked("rejected", "interactive", True): 1,
            asked("unavailable", "interactive", False): 1,
            asked("deadlock", "batch", True): 1,
        }

    def test_waits_are_measured_in_seconds(self, backend: Backend) -> None:
        listener = backend.listener()
        listener(FREE)
        listener(WAITED)
        points = backend.metrics()["userlock.wait.duration"]
        point = points[asked("acquired", "batch", True)]
        assert (point.count, point.sum) == (1, 0.25)
        assert point.explicit_bounds == BUCKETS

    def test_holds_are_measured_by_how_they_ended(self, backend: Backend) -> None:
        listener = backend.listener()
        listener(Released("ann", 0.5, "released"))
        listener(Released("ann", 0.5, "released (degraded)"))
        listener(Released("ann", 0.5, "left (not confirmed)"))
        listener(Released("ann", 0.5, "in a way that is not known yet"))
        listener(LeaseLost("ann", 61.0, "it ran out"))
        outcomes = ("released", "released_degraded", "not_confirmed", "other", "lost")
        expected = {(("userlock.outcome", outcome),): 1 for outcome in outcomes}
        assert backend.counted("userlock.releases") == expected
        holds = backend.metrics()["userlock.hold.duration"]
        assert holds[(("userlock.outcome", "lost"),)].sum == 61.0
        assert set(holds) == set(expected)

    def test_other_events_are_counted(self, backend: Backend) -> None:
        listener = backend.listener()
        listener(Confirmed("ann", 1.5))
        listener(Conflict("ann", "POST /answers"))
        listener(Broken("ann", "POST /answers", "an operator"))
        assert backend.counted("userlock.confirmations") == {
            (("userlock.outcome", "confirmed"),): 1,
            (("userlock.outcome", "conflict"),): 1,
        }
        assert backend.counted("userlock.breaks") == {(): 1}

    def test_mistakes_and_lost_races_are_counted_by_their_kind(self, backend: Backend) -> None:
        listener = backend.listener()
        listener(violation())
        stale = EntityExistsError.__new__(EntityExistsError)
        listener(StaleWrite("ann", stale))
        assert backend.counted("userlock.violations") == {
            (("error.type", "PutWithoutLock"), ("userlock.enforced", False)): 1
        }
        assert backend.counted("userlock.stale_writes") == {
            (("error.type", "EntityExistsError"),): 1
        }

    def test_no_lock_id_is_an_attribute_of_a_metric(self, backend: Backend) -> None:
        listener = backend.listener(lock_id=True)
        for event in (FREE, WAITED, TIMED_OUT, Released("ann", 1, "released"), violation()):
            listener(event)
        text = repr(backend.metrics())
        assert "'ann'" not in text
        assert "/answers" not in text

    def test_units_are_those_of_opentelemetry(self, backend: Backend) -> None:
        listener = backend.listener()
        for event in (FREE, Released("ann", 1, "released"), violation()):
            listener(event)
        data = backend.reader.get_metrics_data()
        assert data is not None
        (scope,) = data.resource_metrics[0].scope_metrics
        assert scope.scope.name == "userlock"
        assert {metric.name: metric.unit for metric in scope.metrics} == {
            "userlock.wait.duration": "s",
            "userlock.hold.duration": "s",
            "userlock.acquisitions": "{acquisition}",
            "userlock.releases": "{release}",
            "userlock.violations": "{violation}",
        }


class TestSpans:
    def test_a_span_covers_the_wait(self, backend: Backend) -> None:
        backend.listener()(WAITED)
        (span,) = backend.spans()
        assert (span.name, span.end_time) == ("userlock.acquire", NOW_NS)
        assert span.start_time == NOW_NS - 250_000_000
        assert dict(span.attributes or {}) == {
            "userlock.outcome": "acquired",
            "userlock.priority": "batch",
            "userlock.attempts": 7,
            "userlock.contended": True,
            "userlock.blocked_by": "POST /answers (interactive)",
        }
        assert span.status.status_code is StatusCode.UNSET

    @pytest.mark.parametrize(
        ("event", "outcome", "error", "facts"),
        [
            pytest.param(TIMED_OUT, "timed_out", "LockTimeout", {}, id="time-out"),
            pytest.param(
                REJECTED, "rejected", "TooManyWaiting", {"userlock.waiting": 5}, id="rejection"
            ),
            pytest.param(
                UNAVAILABLE, "unavailable", "LockServiceUnavailable", {}, id="unavailable"
            ),
            pytest.param(DEADLOCK, "deadlock", "DeadlockDetected", {}, id="deadlock"),
            pytest.param(DEGRADED, "degraded", None, {}, id="degraded"),
        ],
    )
    def test_failures_are_errors(
        self,
        backend: Backend,
        event: Event,
        outcome: str,
        error: str | None,
        facts: dict[str, object],
    ) -> None:
        backend.listener()(event)
        (span,) = backend.spans()
        attributes = dict(span.attributes or {})
        assert (span.status.status_code is StatusCode.ERROR) is (error is not None)
        assert attributes.get("error.type") == error
        assert attributes.items() >= {"userlock.outcome": outcome, **facts}.items()
        assert "userlock.lock_id" not in attributes, "left out by default"

    def test_it_belongs_to_the_trace_of_the_caller(self, backend: Backend) -> None:
        with backend.tracers.get_tracer("app").start_as_current_span("GET /badges") as request:
            backend.listener()(FREE)
        lock, _ = backend.spans()
        assert lock.parent is not None
        assert lock.parent.span_id == request.get_span_context().span_id

    def test_without_a_trace_it_begins_one(self, backend: Backend) -> None:
        backend.listener()(FREE)
        assert backend.spans()[0].parent is None

    def test_only_acquisitions_have_spans(self, backend: Backend) -> None:
        listener = backend.listener()
        for event in (Released("ann", 1, "released"), LeaseLost("ann", 1, "lost"), violation()):
            listener(event)
        assert backend.spans() == []


class TestPersonalData:
    def attributes(self, backend: Backend, event: Event, **options: Any) -> dict[str, object]:
        backend.listener(**options)(event)
        return dict(backend.spans()[-1].attributes or {})

    def test_lock_ids_as_they_are_if_asked_for(self, backend: Backend) -> None:
        assert self.attributes(backend, FREE, lock_id=True)["userlock.lock_id"] == "ann"

    def test_lock_ids_that_cannot_be_exported_are_made_to(self, backend: Backend) -> None:
        event = dataclasses.replace(FREE, lock_id="a\ud800")
        seen = self.attributes(backend, event, lock_id=True)["userlock.lock_id"]
        assert seen == r"a\ud800"

    def test_lock_ids_follow_the_setting_of_the_process(self, backend: Backend) -> None:
        userlock.configure(show_ids="masked")
        assert self.attributes(backend, FREE, lock_id=True)["userlock.lock_id"] == "***"
        userlock.configure(show_ids="hashed", id_key="secret")
        seen = self.attributes(backend, FREE, lock_id=True)["userlock.lock_id"]
        assert seen == ids.show("ann")

    def test_the_blocker_can_be_omitted(self, backend: Backend) -> None:
        seen = self.attributes(backend, WAITED, blocked_by=False)
        assert "userlock.blocked_by" not in seen
        assert seen["userlock.contended"] is True


class TestUnknownEvents:
    def test_events_that_it_does_not_know_are_passed_over(self, backend: Backend) -> None:
        @dataclasses.dataclass(frozen=True, slots=True)
        class Unheard(Event):
            what: str

        listener = backend.listener()
        listener(Unheard("ann", "something new"))
        listener(Contended("ann", "interactive", "POST /answers"))
        listener(Degraded("ann", "no answer"))
        listener(Extended("ann", 10.0))
        assert backend.spans() == []
        assert backend.metrics() == {}


class TestInAService:
    @pytest.fixture
    def service(self, backend: Backend, clock: ManualClock) -> LockService:
        listeners = Listeners()
        listener = instrument(
            listeners, meter_provider=backend.meters, tracer_provider=backend.tracers
        )
        assert isinstance(listener, OpenTelemetryListener)
        return LockService(MemoryStore(clock=clock), listeners=listeners, clock=clock)

    def test_a_lock_that_is_free(
        self, service: LockService, backend: Backend, clock: ManualClock
    ) -> None:
        lease = service.acquire("ann")
        clock.advance(2)
        service.release(lease, held_seconds=2)
        assert backend.counted("userlock.acquisitions") == {
            asked("acquired", "interactive", False): 1
        }
        hold = backend.metrics()["userlock.hold.duration"]
        assert hold[(("userlock.outcome", "released"),)].sum == 2

    def test_a_lock_that_is_not(
        self, service: LockService, backend: Backend, clock: ManualClock
    ) -> None:
        service.acquire("ann", request="POST /answers")
        with pytest.raises(LockTimeout):
            service.acquire("ann", wait_timeout=3)
        attributes = dict(backend.spans()[-1].attributes or {})
        assert attributes["userlock.outcome"] == "timed_out"
        assert "POST /answers" in str(attributes["userlock.blocked_by"])
        waits = backend.metrics()["userlock.wait.duration"]
        assert waits[asked("timed_out", "interactive", True)].sum >= 3

    def test_a_cycle(self, service: LockService, backend: Backend) -> None:
        """A cycle of one: the holder waits for its own lock."""
        lease = service.acquire("ann")
        with pytest.raises(DeadlockDetected):
            service.acquire("ann", holding=[lease])
        (deadlock,) = [
            span
            for span in backend.spans()
            if (span.attributes or {})["userlock.outcome"] == "deadlock"
        ]
        assert deadlock.status.status_code is StatusCode.ERROR

    def test_a_listener_that_fails_breaks_no_lock(
        self,
        backend: Backend,
        clock: ManualClock,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(lock_id: str) -> str:
            raise RuntimeError("no name")

        monkeypatch.setattr("userlock.contrib.opentelemetry.show", fail)
        listeners = Listeners([backend.listener(lock_id=True)])
        service = LockService(MemoryStore(clock=clock), listeners=listeners, clock=clock)
        service.release(service.acquire("ann"))
        assert "a userlock listener failed" in caplog.text
        assert backend.counted("userlock.acquisitions") != {}, "the metrics come first"


def test_without_the_extra_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "userlock.contrib.opentelemetry")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"pip install 'userlock\[otel\]'"):
        import userlock.contrib.opentelemetry  # noqa: F401
