"""Report locks to OpenTelemetry: metrics of waits, holds and mistakes, a span for each acquisition.

Needs the extra `otel` (`pip install userlock[otel]`), which installs only the
API. The SDK that the app sets up decides what happens to the data. Without an
SDK, this module does nothing.

    from userlock.contrib.opentelemetry import instrument
    instrument()                      # once in each process

Metrics (durations in seconds):

    userlock.wait.duration   histogram    from the call to its end: by outcome, priority, contended
    userlock.hold.duration   histogram    from the grant to the release: by outcome
    userlock.acquisitions    counter      "acquired", "degraded" (without the store), "timed_out",
                                          "rejected" (enough callers of the process waited),
                                          "unavailable" (the store did not answer, and the policy
                                          is to fail) or "deadlock": by outcome, priority,
                                          contended
    userlock.releases        counter      "released", "released_degraded", "not_confirmed" or
                                          "lost": by outcome
    userlock.confirmations   counter      degraded locks when the store answers again: "confirmed",
                                          or "conflict" (another request holds it): by outcome
    userlock.breaks          counter      leases that an operator ended in this process
    userlock.violations      counter      writes that slipped past their lock: by error.type,
                                          enforced
    userlock.stale_writes    counter      writes refused at the commit: by error.type

The attributes (`userlock.outcome`, `userlock.priority`, `userlock.contended`,
`userlock.enforced`, and OpenTelemetry's own `error.type`) have few values each,
so there are few time series. Lock ids are never among them.

Spans are named `userlock.acquire`, belong to the trace of the request, and last
from the call to its end, also if the lock was not acquired (status: error).
They are made when the wait is over, so they have no children. Attributes:
`userlock.outcome`, `userlock.priority`, `userlock.attempts`,
`userlock.contended`, and `userlock.blocked_by`: the request and the process of
the first holder, as in the log.

Personal data: a lock id is normally a user's id, so spans contain none unless
`lock_id=True`; they show it as `userlock.configure(show_ids=…)` says, and so the
request of the holder. `blocked_by=False` omits that.

Names follow OpenTelemetry's rules for naming and for metrics
(https://opentelemetry.io/docs/specs/semconv/general/naming/, .../metrics/).
"""

from __future__ import annotations

import time
from collections.abc import Callable

try:
    from opentelemetry import metrics, trace
except ImportError as error:
    raise ImportError(
        "userlock.contrib.opentelemetry needs OpenTelemetry's API: pip install 'userlock[otel]'"
    ) from error

from userlock._version import __version__
from userlock.events import (
    LISTENERS,
    Acquired,
    Broken,
    Confirmed,
    Conflict,
    Deadlock,
    Event,
    LeaseLost,
    Listeners,
    Rejected,
    Released,
    StaleWrite,
    TimedOut,
    Unavailable,
    Violation,
)
from userlock.ids import show

#: Bounds of the histograms' buckets, in seconds. A free lock takes a millisecond or two at most;
#: waits and leases end at a minute.
BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0),
)

_NAME = "userlock"

_HISTOGRAMS = (
    ("userlock.wait.duration", "Time from the call to the lock, or to the end of the wait."),
    ("userlock.hold.duration", "Time from the grant of a lock to its release."),
)
_COUNTERS = (
    ("userlock.acquisitions", "{acquisition}", "Calls that asked for a lock."),
    ("userlock.releases", "{release}", "Locks that were released or lost."),
    ("userlock.confirmations", "{confirmation}", "Degraded locks, when the store answers again."),
    ("userlock.breaks", "{break}", "Leases that an operator ended."),
    ("userlock.violations", "{violation}", "Writes that slipped past their lock."),
    ("userlock.stale_writes", "{write}", "Stale writes that were refused at the commit."),
)

#: The outcomes of releases, as events and as metrics name them.
_RELEASES = {
    "released": "released",
    "released (degraded)": "released_degraded",
    "left (not confirmed)": "not_confirmed",
}

#: The outcomes of acquisitions without the lock: the error, and the status of the span.
_FAILURES = {
    "timed_out": ("LockTimeout", "the lock was not free within the wait"),
    "rejected": ("TooManyWaiting", "enough callers of the process waited for the lock"),
    "unavailable": ("LockServiceUnavailable", "the lease store did not answer"),
    "deadlock": ("DeadlockDetected", "waiting for the lock would never have ended"),
}

_Attributes = dict[str, str | bool | int | float]


def instrument(
    listeners: Listeners | None = None,
    *,
    meter_provider: metrics.MeterProvider | None = None,
    tracer_provider: trace.TracerProvider | None = None,
    lock_id: bool = False,
    blocked_by: bool = True,
) -> OpenTelemetryListener:
    """Report lock events from now on. Call it once: each call reports everything again.

    Args:
        listeners: the listeners to join; by default those of the process, to which every lock
            service and the model layer report unless they were given others.
        meter_provider: as for `OpenTelemetryListener`, like the rest.
        tracer_provider: see there.
        lock_id: see there.
        blocked_by: see there.

    Returns:
        The listener that was added.
    """
    listener = OpenTelemetryListener(
        meter_provider=meter_provider,
        tracer_provider=tracer_provider,
        lock_id=lock_id,
        blocked_by=blocked_by,
    )
    (LISTENERS if listeners is None else listeners).add(listener)
    return listener


class OpenTelemetryListener:
    """A listener that turns events into metrics and spans. Thread-safe.

    It ignores unknown events. The thread that asked for the lock calls it, so
    it finds the current trace there.

    Args:
        meter_provider: the receiver of metrics; by default the global one.
        tracer_provider: the receiver of spans; by default the global one.
        lock_id: whether spans name the lock (`userlock.lock_id`), in the form that
            `userlock.configure(show_ids=…)` sets.
        blocked_by: whether spans name the holder that was waited for.
        time_ns: returns the time in nanoseconds since 1970.
    """

    def __init__(
        self,
        *,
        meter_provider: metrics.MeterProvider | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        lock_id: bool = False,
        blocked_by: bool = True,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._lock_id = lock_id
        self._blocked_by = blocked_by
        self._time_ns = time_ns
        self._tracer = trace.get_tracer(_NAME, __version__, tracer_provider)
        meter = metrics.get_meter(_NAME, __version__, meter_provider)
        self._durations = {
            name: meter.create_histogram(
                name, unit="s", description=text, explicit_bucket_boundaries_advisory=BUCKETS
            )
            for name, text in _HISTOGRAMS
        }
        self._counters = {
            name: meter.create_counter(name, unit=unit, description=text)
            for name, unit, text in _COUNTERS
        }

    def __call__(self, event: Event) -> None:
        match event:
            case Acquired():
                outcome = "degraded" if event.degraded else "acquired"
                self._acquisition(event, outcome, {"userlock.attempts": event.attempts})
            case TimedOut():
                self._acquisition(event, "timed_out", {})
            case Rejected():
                self._acquisition(event, "rejected", {"userlock.waiting": event.waiting})
            case Unavailable():
                self._acquisition(event, "unavailable", {})
            case Deadlock():
                self._acquisition(event, "deadlock", {})
            case Released():
                self._release(event, _RELEASES.get(event.outcome, "other"))
            case LeaseLost():
                self._release(event, "lost")
            case Confirmed():
                self._count("userlock.confirmations", {"userlock.outcome": "confirmed"})
            case Conflict():
                self._count("userlock.confirmations", {"userlock.outcome": "conflict"})
            case Broken():
                self._count("userlock.breaks", {})
            case Violation():
                error = {"error.type": type(event.error).__name__}
                self._count("userlock.violations", {**error, "userlock.enforced": event.enforced})
            case StaleWrite():
                self._count("userlock.stale_writes", {"error.type": type(event.error).__name__})

    def _count(self, name: str, attributes: _Attributes) -> None:
        self._counters[name].add(1, attributes)

    def _acquisition(
        self,
        event: Acquired | TimedOut | Rejected | Unavailable | Deadlock,
        outcome: str,
        details: _Attributes,
    ) -> None:
        common: _Attributes = {
            "userlock.outcome": outcome,
            "userlock.priority": event.priority,
            "userlock.contended": bool(event.blocked_by),
        }
        self._count("userlock.acquisitions", common)
        self._durations["userlock.wait.duration"].record(event.waited_seconds, common)
        error, status = _FAILURES.get(outcome, ("", ""))
        attributes = {**common, **details}
        if error:
            attributes["error.type"] = error
        if self._blocked_by and event.blocked_by:
            attributes["userlock.blocked_by"] = event.blocked_by
        if self._lock_id and event.lock_id is not None:
            attributes["userlock.lock_id"] = show(event.lock_id)
        ended = self._time_ns()
        # With all attributes at the start, where samplers read them.
        span = self._tracer.start_span(
            "userlock.acquire",
            attributes=attributes,
            start_time=ended - round(event.waited_seconds * 1e9),
        )
        if error:
            span.set_status(trace.StatusCode.ERROR, status)
        span.end(ended)

    def _release(self, event: Released | LeaseLost, outcome: str) -> None:
        attributes: _Attributes = {"userlock.outcome": outcome}
        self._count("userlock.releases", attributes)
        self._durations["userlock.hold.duration"].record(event.held_seconds, attributes)
