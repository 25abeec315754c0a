"""Report locks to OpenTelemetry: metrics of waits, holds and mistakes, a span for each acquisition.

Needs the extra `otel` (`pip install userlock[otel]`), which installs only the API. The app's SDK
decides what happens to the data; without an SDK, this module does nothing.

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

Of the outbox, if there is one (`messaging.destination.name` is the job's name):

    userlock.job.runs        counter      runs: "done", "failed" (it runs again), "dead" or "lost"
                                          (another worker has taken it over): by outcome,
                                          messaging.destination.name, error.type
    userlock.job.lag         histogram    from the moment that a job was due to its begin: by
                                          messaging.destination.name
    messaging.process.duration  histogram  of a run: by messaging.destination.name,
                                          messaging.operation.name ("run"), messaging.system
                                          ("userlock"), error.type

With `instrument(outbox=outbox)`, of the whole outbox, read once a minute at most (by some 40 small
queries). One process that does it is enough. Nothing is reported while Datastore does not answer.

    userlock.outbox.lag      gauge        of the job that has been due for the longest time
    userlock.outbox.jobs     gauge        jobs: by userlock.state ("due", "later", "running",
                                          "dead")
    userlock.outbox.blocked  gauge        waiting jobs behind a dead one of their owner
    userlock.outbox.refused  counter      messages that the engine has not taken, in this process;
                                          the relay sends others

Of requests with an idempotency key:

    userlock.requests        counter      "done", "resumed", "replayed", "unfinished", "running",
                                          "taken_over", "reused" or "malformed": by outcome,
                                          userlock.flow, error.type
    userlock.request.duration  histogram  from the call to the answer: by outcome, userlock.flow

The attributes (`userlock.outcome`, `userlock.priority`, `userlock.contended`, `userlock.enforced`,
and OpenTelemetry's own `error.type`) have few values each, so there are few time series. Lock ids
are never among them.

Spans are named `userlock.acquire`, belong to the trace of the request, and last from the call to
its end, also if the lock was not acquired (status: error). They are made when the wait is over, so
they have no children. Attributes: `userlock.outcome`, `userlock.priority`, `userlock.attempts`,
`userlock.contended`, and `userlock.blocked_by`: the request and the process of the first holder, as
in the log.

Personal data: a lock id is normally a user's id, so spans contain none unless `lock_id=True`; they
show it as `userlock.configure(show_ids=…)` says, and so the request of the holder.
`blocked_by=False` omits that.

Names follow OpenTelemetry's rules for naming, for metrics and for messaging
(https://opentelemetry.io/docs/specs/semconv/general/naming/, .../metrics/,
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/).
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, Unpack

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, Observation
except ImportError as error:
    raise ImportError(
        "userlock.contrib.opentelemetry needs OpenTelemetry's API: pip install 'userlock[otel]'"
    ) from error

from userlock import events
from userlock._version import __version__
from userlock.arguments import check_bool, check_kind
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.events import LISTENERS, Acquired, Event, JobRan, Listeners, RequestServed
from userlock.fork import reset_in_child
from userlock.ids import show

if TYPE_CHECKING:
    from userlock.outbox.listing import Status
    from userlock.outbox.outbox import Outbox

log = logging.getLogger(__name__)

#: Bounds of the histograms' buckets, in seconds. A free lock takes a millisecond or two at most;
#: waits and leases end at a minute.
BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0),
)
#: The same of runs of jobs, and of their lag, which is a day if nobody looks.
RUN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 900.0)
LAG_BUCKETS = (0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)

_NAME = "userlock"

#: How often an outbox is read at most, and the time-out of each query, in seconds.
_READ_SECONDS = 60.0
_QUERY_SECONDS = 5.0

_HISTOGRAMS = (
    ("userlock.wait.duration", BUCKETS, "Time from the call to the lock, or the end of the wait."),
    ("userlock.hold.duration", BUCKETS, "Time from the grant of a lock to its release."),
    ("userlock.job.lag", LAG_BUCKETS, "Time from the moment that a job was due to its begin."),
    ("userlock.request.duration", RUN_BUCKETS, "Time from the call to the answer of a request."),
    ("messaging.process.duration", RUN_BUCKETS, "Duration of a run of a job."),
)
_COUNTERS = (
    ("userlock.acquisitions", "{acquisition}", "Calls that asked for a lock."),
    ("userlock.releases", "{release}", "Locks that were released or lost."),
    ("userlock.confirmations", "{confirmation}", "Degraded locks, when the store answers again."),
    ("userlock.breaks", "{break}", "Leases that an operator ended."),
    ("userlock.violations", "{violation}", "Writes that slipped past their lock."),
    ("userlock.stale_writes", "{write}", "Stale writes that were refused at the commit."),
    ("userlock.job.runs", "{run}", "Runs of jobs."),
    ("userlock.requests", "{request}", "Requests with an idempotency key."),
)

#: The outcomes of releases, as events and as metrics name them.
_RELEASES = {
    "released": "released",
    "released (degraded)": "released_degraded",
    "left (not confirmed)": "not_confirmed",
}
_Ended = Acquired | events.TimedOut | events.Rejected | events.Unavailable | events.Deadlock
#: The ends of acquisitions without the lock: the outcome, the error, the status of the span.
_FAILURES: dict[type[Event], tuple[str, str, str]] = {
    events.TimedOut: ("timed_out", "LockTimeout", "the lock was not free within the wait"),
    events.Rejected: ("rejected", "TooManyWaiting", "enough callers of the process waited"),
    events.Unavailable: ("unavailable", "LockServiceUnavailable", "the lease store did not answer"),
    events.Deadlock: ("deadlock", "DeadlockDetected", "waiting would never have ended"),
}

_Attributes = dict[str, str | bool | int | float]


class _Options(TypedDict, total=False):
    tracer_provider: trace.TracerProvider | None
    lock_id: bool
    blocked_by: bool


def instrument(
    listeners: Listeners | None = None,
    *,
    meter_provider: metrics.MeterProvider | None = None,
    outbox: Outbox | None = None,
    **options: Unpack[_Options],
) -> OpenTelemetryListener:
    """Report lock events from now on. Call it once: each call reports everything again.

    Args:
        listeners: the listeners to join; by default those of the process, to which every lock
            service and the model layer report unless they were given others.
        meter_provider: as for `OpenTelemetryListener`.
        outbox: also report the lag and the numbers of its jobs. It needs `client=`, as it is read
            in a thread of OpenTelemetry's.
        options: `tracer_provider`, `lock_id`, `blocked_by`, as for that.

    Returns:
        The listener that was added.
    """
    listener = OpenTelemetryListener(meter_provider=meter_provider, **options)
    if outbox is not None:
        from userlock.outbox import Outbox  # loads ndb

        check_kind("outbox", outbox, Outbox, "a userlock.outbox.Outbox")
        _OutboxGauges(outbox, SYSTEM_CLOCK).create(meter_provider)
    (LISTENERS if listeners is None else listeners).add(listener)
    return listener


class OpenTelemetryListener:
    """A listener that turns events into metrics and spans. Thread-safe.

    It ignores unknown events. The thread that asked for the lock calls it: there is the trace.

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
        self._lock_id = check_bool("lock_id", lock_id)
        self._blocked_by = check_bool("blocked_by", blocked_by)
        self._time_ns = time_ns
        self._tracer = trace.get_tracer(_NAME, __version__, tracer_provider)
        meter = metrics.get_meter(_NAME, __version__, meter_provider)
        self._durations = {
            name: meter.create_histogram(
                name, unit="s", description=text, explicit_bucket_boundaries_advisory=buckets
            )
            for name, buckets, text in _HISTOGRAMS
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
            case events.Rejected():
                self._acquisition(event, "", {"userlock.waiting": event.waiting})
            case events.TimedOut() | events.Unavailable() | events.Deadlock():
                self._acquisition(event, "", {})
            case events.Released():
                self._release(event, _RELEASES.get(event.outcome, "other"))
            case events.LeaseLost():
                self._release(event, "lost")
            case events.Confirmed():
                self._count("userlock.confirmations", {"userlock.outcome": "confirmed"})
            case events.Conflict():
                self._count("userlock.confirmations", {"userlock.outcome": "conflict"})
            case events.Broken():
                self._count("userlock.breaks", {})
            case events.Violation():
                error = {"error.type": type(event.error).__name__}
                self._count("userlock.violations", {**error, "userlock.enforced": event.enforced})
            case events.StaleWrite():
                self._count("userlock.stale_writes", {"error.type": type(event.error).__name__})
            case JobRan():
                self._job(event)
            case RequestServed():
                self._request(event)

    def _count(self, name: str, attributes: _Attributes) -> None:
        self._counters[name].add(1, attributes)

    def _acquisition(self, event: _Ended, outcome: str, details: _Attributes) -> None:
        outcome, error, status = _FAILURES.get(type(event), (outcome, "", ""))
        common: _Attributes = {
            "userlock.outcome": outcome,
            "userlock.priority": event.priority,
            "userlock.contended": bool(event.blocked_by),
        }
        self._count("userlock.acquisitions", common)
        self._durations["userlock.wait.duration"].record(event.waited_seconds, common)
        attributes = {**common, **details, **({"error.type": error} if error else {})}
        if self._blocked_by and event.blocked_by:
            attributes["userlock.blocked_by"] = event.blocked_by
        if self._lock_id and event.lock_id is not None:
            attributes["userlock.lock_id"] = show(event.lock_id)
        ended = self._time_ns()
        began = ended - round(event.waited_seconds * 1e9)
        # With all attributes at the start, where samplers read them.
        span = self._tracer.start_span("userlock.acquire", attributes=attributes, start_time=began)
        if error:
            span.set_status(trace.StatusCode.ERROR, status)
        span.end(ended)

    def _release(self, event: events.Released | events.LeaseLost, outcome: str) -> None:
        attributes: _Attributes = {"userlock.outcome": outcome}
        self._count("userlock.releases", attributes)
        self._durations["userlock.hold.duration"].record(event.held_seconds, attributes)

    def _job(self, event: JobRan) -> None:
        job: _Attributes = {"messaging.destination.name": event.job}
        run = {**job, "error.type": _error_type(event.error)} if event.error else job
        self._count("userlock.job.runs", {**run, "userlock.outcome": event.outcome})
        self._durations["userlock.job.lag"].record(event.lag_seconds, job)
        run = {**run, "messaging.system": _NAME, "messaging.operation.name": "run"}
        self._durations["messaging.process.duration"].record(event.seconds, run)

    def _request(self, event: RequestServed) -> None:
        outcome = event.outcome.replace(" ", "_")
        attributes: _Attributes = {"userlock.flow": event.flow, "userlock.outcome": outcome}
        self._durations["userlock.request.duration"].record(event.seconds, attributes)
        if event.error:
            attributes = {**attributes, "error.type": _error_type(event.error)}
        self._count("userlock.requests", attributes)


def _error_type(error: str) -> str:
    """Return the class of a job's error: it stands before the error's own text."""
    name = error.partition(":")[0]
    # OpenTelemetry's word for all others, such as a process that has ended.
    return name if len(name) <= 100 and name.replace(".", "").isidentifier() else "_OTHER"


class _OutboxGauges:
    """Observes an outbox: at most once a minute, whoever asks, and each query for five seconds."""

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self._outbox = outbox
        self._clock = clock
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._read_at = -_READ_SECONDS
        self._status: Status | None = None

    def create(self, meter_provider: metrics.MeterProvider | None) -> None:
        """Create the instruments."""
        meter = metrics.get_meter(_NAME, __version__, meter_provider)
        for name, unit, text, states in (
            ("lag", "s", "Time that the oldest due job has been due.", ()),
            ("jobs", "{job}", "Jobs in the outbox.", ("due", "later", "running", "dead")),
            ("blocked", "{job}", "Jobs that wait behind a dead one.", ()),
        ):
            callback = functools.partial(self._observe, name, states)
            meter.create_observable_gauge(f"userlock.outbox.{name}", [callback], unit, text)
        text = "Messages that the engine has not taken."
        refused = [lambda _: [Observation(self._outbox.refused_messages)]]
        meter.create_observable_counter("userlock.outbox.refused", refused, "{message}", text)

    def _observe(self, name: str, states: tuple[str, ...], _: CallbackOptions) -> list[Observation]:
        """Observe one figure of the latest status; nothing if Datastore did not answer."""
        from userlock.outbox.listing import take_status  # loads ndb

        with self._mutex:  # a second reader waits for the first one's answer
            if self._clock.now() - self._read_at >= _READ_SECONDS:
                self._status = None
                try:
                    wall = self._clock.wall()
                    self._status = take_status(self._outbox, wall, timeout=_QUERY_SECONDS)
                except Exception as error:
                    log.warning("the outbox could not be read for metrics: %r", error)
                self._read_at = self._clock.now()
            status = self._status
        if status is None:
            return []
        if not states:
            return [Observation(getattr(status, name))]
        return [Observation(getattr(status, each), {"userlock.state": each}) for each in states]
