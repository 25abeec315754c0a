"""OpenTelemetry: metrics of waits, holds and mistakes, and a span for each lock that is taken.

Needs the extra `otel` (`pip install userlock[otel]`), which brings the API
alone. What becomes of the data is up to the SDK that the app sets up; without
one, everything here does nothing.

    from userlock.contrib.opentelemetry import instrument
    instrument()                      # once in each process

Metrics (durations in seconds):

    userlock.wait.duration   histogram    from the call to its end: by outcome, priority, contended
    userlock.hold.duration   histogram    from the grant to the release: by outcome
    userlock.acquisitions    counter      "acquired", "degraded" (without the store's word),
                                          "timed_out", "unavailable" (the store did not answer, and
                                          the policy is to fail) or "deadlock" (gave way in a circle
                                          of waiters): by outcome, priority, contended
    userlock.releases        counter      "released", "released_degraded", "not_confirmed" or
                                          "lost": by outcome
    userlock.confirmations   counter      degraded locks, once the store answers again: "confirmed",
                                          or "conflict" (it is another's): by outcome
    userlock.breaks          counter      leases that an operator of this process ended
    userlock.inversions      counter      second locks that were taken out of order
    userlock.violations      counter      writes that slipped past their lock: by error.type,
                                          enforced
    userlock.stale_writes    counter      writes refused at the commit: by error.type

Their attributes (`userlock.outcome`, `userlock.priority`, `userlock.contended`,
`userlock.enforced`, and OpenTelemetry's own `error.type`) have a handful of
values each, so they make few time series. Lock ids are never among them.

Spans are named `userlock.acquire`, belong to the trace of whoever asked for
the lock, and last from the call to its end, also where the lock was not to be
had (their status is then an error). They are made when the wait is over, so what
happens within it is not their child. Attributes: `userlock.outcome`,
`userlock.priority`, `userlock.attempts`, `userlock.contended`, and
`userlock.blocked_by`, which names the request and the process of the holder
that was waited for, as the log does.

Personal data: a lock id is normally a user's, so spans say nothing of it
unless `lock_id=` says how; `hashed(key)` gives what can be compared, but not
guessed. A request's path can contain ids too: `blocked_by=False` leaves it out.

Names follow OpenTelemetry's rules for naming and for metrics
(https://opentelemetry.io/docs/specs/semconv/general/naming/, .../metrics/).
"""

from __future__ import annotations

import hashlib
import hmac
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
    Released,
    StaleWrite,
    TimedOut,
    Unavailable,
    Violation,
)

#: Edges of the histograms' buckets, in seconds. A lock that is free takes well under a
#: millisecond or two; waits and leases end at a minute.
BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0),
)

_NAME = "userlock"

#: How releases end, in the words of the events and in those of the metrics.
_RELEASES = {
    "released": "released",
    "released (degraded)": "released_degraded",
    "left (not confirmed)": "not_confirmed",
}

#: Acquisitions that ended without the lock, and what their spans say.
_FAILURES = {
    "timed_out": "the lock was not free within the wait",
    "unavailable": "the lease store did not answer",
    "deadlock": "waiting for the lock would never have ended",
}

_Attributes = dict[str, str | bool | int | float]


def instrument(
    listeners: Listeners | None = None,
    *,
    meter_provider: metrics.MeterProvider | None = None,
    tracer_provider: trace.TracerProvider | None = None,
    lock_id: Callable[[str], str] | None = None,
    blocked_by: bool = True,
) -> OpenTelemetryListener:
    """Report what happens to locks from now on. Call it once: each call reports everything again.

    Args:
        listeners: whose events; by default the process-wide ones, which every lock service and
            the model layer tell unless they were given others.
        meter_provider: as `OpenTelemetryListener` takes it, like what follows.
        tracer_provider: where spans go.
        lock_id: how spans name a lock.
        blocked_by: whether spans name the holder that was waited for.

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


def hashed(key: bytes) -> Callable[[str], str]:
    """For `lock_id=`: 16 hexadecimal digits that are the same for the same lock.

    Args:
        key: a secret of the app, the same in all its processes. Without one, the few millions
            of ids that there are could be tried one after the other.

    Raises:
        ValueError: an empty key.
    """
    if not key:
        raise ValueError("hashed() needs a secret key: lock ids without one can be guessed")

    def digest(lock_id: str) -> str:
        text = lock_id.encode("utf-8", "surrogatepass")
        return hmac.new(key, text, hashlib.sha256).hexdigest()[:16]

    return digest


class OpenTelemetryListener:
    """A listener that turns events into metrics and spans. Thread-safe.

    Events that it does not know it passes over. It is called by the thread that
    asked for the lock, so it finds the current trace there.

    Args:
        meter_provider: where metrics go; by default the global one.
        tracer_provider: where spans go; by default the global one.
        lock_id: what spans say for a lock id (`userlock.lock_id`); by default nothing. `hashed`
            makes such a function; `str` gives the id as it is.
        blocked_by: whether spans name the holder that was waited for.
        time_ns: the time, in nanoseconds since 1970.
    """

    def __init__(
        self,
        *,
        meter_provider: metrics.MeterProvider | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        lock_id: Callable[[str], str] | None = None,
        blocked_by: bool = True,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._lock_id = lock_id
        self._blocked_by = blocked_by
        self._time_ns = time_ns
        self._tracer = trace.get_tracer(_NAME, __version__, tracer_provider)
        meter = metrics.get_meter(_NAME, __version__, meter_provider)
        self._waits = meter.create_histogram(
            "userlock.wait.duration",
            unit="s",
            description="Time from asking for a lock to having it or giving up.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._holds = meter.create_histogram(
            "userlock.hold.duration",
            unit="s",
            description="Time from the grant of a lock to its release.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._acquisitions = meter.create_counter(
            "userlock.acquisitions", unit="{acquisition}", description="Locks that were asked for."
        )
        self._releases = meter.create_counter(
            "userlock.releases", unit="{release}", description="Locks that were given back or lost."
        )
        self._confirmations = meter.create_counter(
            "userlock.confirmations",
            unit="{confirmation}",
            description="Locks taken without the store's word, once it answered again.",
        )
        self._breaks = meter.create_counter(
            "userlock.breaks", unit="{break}", description="Leases that an operator ended."
        )
        self._violations = meter.create_counter(
            "userlock.violations",
            unit="{violation}",
            description="Writes that slipped past their lock.",
        )
        self._stale_writes = meter.create_counter(
            "userlock.stale_writes",
            unit="{write}",
            description="Writes that were refused at the commit, because somebody wrote first.",
        )

    def __call__(self, event: Event) -> None:
        match event:
            case Acquired():
                self._asked(
                    event,
                    "degraded" if event.degraded else "acquired",
                    {"userlock.attempts": event.attempts},
                )
            case TimedOut():
                self._asked(event, "timed_out", {"error.type": "LockTimeout"})
            case Unavailable():
                self._asked(event, "unavailable", {"error.type": "LockServiceUnavailable"})
            case Deadlock():
                self._asked(event, "deadlock", {"error.type": "DeadlockDetected"})
            case Released():
                self._let_go(event, _RELEASES.get(event.outcome, "other"))
            case LeaseLost():
                self._let_go(event, "lost")
            case Confirmed():
                self._confirmations.add(1, {"userlock.outcome": "confirmed"})
            case Conflict():
                self._confirmations.add(1, {"userlock.outcome": "conflict"})
            case Broken():
                self._breaks.add(1)
            case Violation():
                self._violations.add(
                    1, {"error.type": _kind(event.error), "userlock.enforced": event.enforced}
                )
            case StaleWrite():
                self._stale_writes.add(1, {"error.type": _kind(event.error)})

    def _asked(
        self,
        event: Acquired | TimedOut | Unavailable | Deadlock,
        outcome: str,
        details: _Attributes,
    ) -> None:
        common: _Attributes = {
            "userlock.outcome": outcome,
            "userlock.priority": event.priority,
            "userlock.contended": bool(event.blocked_by),
        }
        self._acquisitions.add(1, common)
        self._waits.record(event.waited_seconds, common)
        described = {**common, **details}
        if self._blocked_by and event.blocked_by:
            described["userlock.blocked_by"] = event.blocked_by
        if self._lock_id is not None and event.lock_id is not None:
            # A lone surrogate could not be exported.
            name = self._lock_id(event.lock_id).encode("utf-8", "replace").decode()
            described["userlock.lock_id"] = name
        ended = self._time_ns()
        # All at the start, where samplers look at it.
        span = self._tracer.start_span(
            "userlock.acquire",
            attributes=described,
            start_time=ended - round(event.waited_seconds * 1e9),
        )
        if outcome in _FAILURES:
            span.set_status(trace.StatusCode.ERROR, _FAILURES[outcome])
        span.end(ended)

    def _let_go(self, event: Released | LeaseLost, outcome: str) -> None:
        attributes: _Attributes = {"userlock.outcome": outcome}
        self._releases.add(1, attributes)
        self._holds.record(event.held_seconds, attributes)


def _kind(error: Exception) -> str:
    return type(error).__name__
