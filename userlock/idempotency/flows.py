"""The flows that an app declares, and the requests that they leave.

Unfinished requests become jobs of an outbox (`complete_by_relay`):

    client       row              relay                 worker
    begins ────▶ ride
    is gone      ride ◀────────── each minute: older
                                  than five minutes
                                  stage, once ────────▶ the user's lock, the rest of the request
                 the answer ◀───────────────────────────
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from google.cloud import ndb

from userlock import errors
from userlock.apps import note_made
from userlock.arguments import check_kind, check_number, check_seconds
from userlock.callsite import raised_at
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.events import LISTENERS, RequestServed
from userlock.idempotency import rows
from userlock.idempotency.answers import Answer, is_kept
from userlock.idempotency.flow import Flow
from userlock.idempotency.rows import Request
from userlock.idempotency.runner import Run
from userlock.ids import quoted, show_key
from userlock.lock.configuration import defaults
from userlock.lock.lease import check_lock_id
from userlock.lock.service import LockService, check_service
from userlock.ndb.client import ClientOfProcess
from userlock.ndb.owners import current_namespace, in_namespace, micros_now
from userlock.ndb.transactions import is_outage, runs_later

if TYPE_CHECKING:
    from userlock.outbox import Outbox

log = logging.getLogger(__name__)

_MOST_KEPT_HOURS = 24 * 365
_MOST_ERROR = 500
#: The job that completes a request.
_COMPLETE = "userlock.complete_request"
#: At most so many are staged by one call of the relay, and of one user; the next ones go on.
_MOST = 200
_MOST_OF_ONE = 20

#: Of requests that have got an error, in `RequestServed`.
_OUTCOMES: dict[type[Exception], str] = {
    errors.IdempotencyKeyRefused: "malformed",
    errors.IdempotencyKeyReused: "reused",
    errors.RequestRunning: "running",
    errors.LockTimeout: "running",
    errors.TooManyWaiting: "running",
    errors.FlowTakenOver: "taken over",
}


class Flows:
    """Requests that happen once. Thread-safe.

    Args:
        service: the source of locks outside of a scope; by default the configured one.
        client: the `ndb.Client`, or a function that makes it, for code outside of web requests
            (the command line). None: a context is open wherever it is used.
        keep_hours: how long an answer is kept after the request is finished.
        claim_seconds: how long an attempt without a confirmed lock keeps others out.
        clock: for all times.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        *,
        service: LockService | None = None,
        client: Any = None,
        keep_hours: float = 24.0,
        claim_seconds: float = 60.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._service = None if service is None else check_service(service)
        self._client = ClientOfProcess(client)
        self._keep_hours = check_keep_hours(keep_hours)
        self._claim_seconds = check_seconds("claim_seconds", claim_seconds, most=86_400)
        self._clock = clock
        #: The functions that the server can call itself, and how long their answers are kept.
        self._registered: dict[str, tuple[Callable[[Flow], Any], float | None]] = {}
        #: The names of all flows and views. A row with another one is of an earlier version.
        self._names: set[str] = set()
        note_made(self)

    def function(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        keep_hours: float | None = None,
    ) -> Any:
        """Make a function run once for each key; a decorator, for jobs and scripts.

            @flows.function
            def refund(flow, cents): ...

            refund("ann", "payment-1234-refund", cents=500)

        It is called with the user, the key and its parameters by name, and returns what it has
        returned, or answered in `flow.last()`.

        Args:
            function: it gets a `Flow` and the parameters.
            name: the name in the rows, by default module and function.
            keep_hours: how long an answer is kept, by default as long as the others.

        Raises:
            ConfigurationError: the name is taken, or it is a coroutine or a generator.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            known = name or name_of_function(function)
            check_function(known, function)
            self.register(known, lambda flow: function(flow, **flow.params), keep_hours)
            signature = inspect.signature(function, follow_wrapped=False)

            @functools.wraps(function)
            def call(user_id: str, idempotency_key: str, /, **params: Any) -> Any:
                signature.bind(None, **params)  # a wrong call takes no key
                request = Request(user_id, idempotency_key, known, params)
                return self.run(request).value

            return call

        return register if function is None else register(function)

    def register(
        self, name: str, function: Callable[[Flow], Any], keep_hours: float | None = None
    ) -> None:
        """Let the server call the function of a flow. ConfigurationError: the name is taken."""
        if keep_hours is not None:
            check_keep_hours(keep_hours)
        if name in self._registered:
            raise errors.ConfigurationError(
                f"two flows have the name {name}. To fix it: give name="
            )
        self._registered[name] = function, keep_hours
        self.note(name)

    def note(self, name: str) -> None:
        """Note that there is a flow of that name, be it one that the server cannot call itself."""
        self._names.add(name)

    def is_registered(self, name: str) -> bool:
        """Return whether the server can call the function of a flow itself, in this process."""
        return name in self._registered

    def reap(self, *, stopped: Callable[[], bool] = lambda: False) -> int:
        """Remove the answers that are no longer kept; return how many. In an ndb context.

        A request that is not finished is never removed.
        """
        removed = 0
        now = micros_now(self._clock)
        for key in rows.requests_before(rows.DONE, now):
            if stopped():
                break
            with _alone("an answer is not removed yet"):
                removed += ndb.transaction(lambda key=key: self._remove(key, now))
        return removed

    @staticmethod
    def _remove(key: Any, now: int) -> bool:
        row = key.get(use_cache=False, use_global_cache=False)
        if row is None or not row.is_finished or not row.has_expired(now):
            return False
        key.delete(use_cache=False, use_global_cache=False)
        return True

    def unfinished(
        self, *, older_than: float | None = None, share: int | None = None
    ) -> Iterator[Request]:
        """Yield the unfinished requests that the server can complete. In an ndb context.

        Those of functions that are not registered here, or whose parameters are not stored, are
        left to their clients.

        Args:
            older_than: since they have begun, in seconds: younger ones may still be running. None:
                those that are due, five minutes after their first attempt; after each further
                one twice the time, at most an hour.
            share: the most of one user; None: all.
        """
        now = micros_now(self._clock)
        begun_by = math.inf if older_than is None else now - round(older_than * 1e6)
        seen: Counter[Any] = Counter()
        for key in rows.requests_before(rows.OPEN, now + 1 if older_than is None else None):
            seen[key.parent()] += 1
            if share is not None and seen[key.parent()] > share:
                continue
            request = self._completable(key, begun_by)
            if request is not None:
                yield request

    def _completable(self, key: Any, begun_by: float) -> Request | None:
        """Return a request; None if the server cannot complete it, or it is younger."""
        row = key.get(use_cache=False, use_global_cache=False)
        if row is None:
            return None
        try:
            known = row.flow in self._registered and row.params is not None
            if row.is_finished or row.begun_at > begun_by or not known:
                return None
            return rows.request_of(row)
        except Exception:  # whatever its bytes raise: it must not stop the others
            log.exception("the request %s is malformed", show_key(key))
            return None

    def put_off(self, request: Request) -> bool:
        """Let a request be due later, in the running transaction; return whether it is unfinished.

        It is about to be completed, or has failed: the others have their turn.
        """
        row = rows.request_key(request.user_id, request.key).get()
        if row is None or row.is_finished:
            return False
        row.complete_at = micros_now(self._clock) + rows.complete_after(row.attempts)
        row.put()
        return True

    def complete(
        self, *, older_than: float | None = None
    ) -> Iterator[tuple[Request, Answer | None]]:
        """Complete unfinished requests; yield each with its answer, as `complete_one` returns it.

        `older_than`: as for `unfinished`.
        """
        for request in self.unfinished(older_than=older_than):
            yield request, self.complete_one(request)

    def complete_one(self, request: Request) -> Answer | None:
        """Complete an unfinished request, as if it was sent again. In an ndb context.

        Returns the answer; None if it has failed again. The log says why.
        """
        try:
            with in_namespace(request.namespace):
                return self.run(request, wait_timeout=0, refuse=True)
        except (errors.RequestRunning, errors.LockTimeout) as error:
            log.warning("a request of %s is not complete: %s", quoted(request.user_id), error)
            return None
        except Exception:
            log.exception("a request of %s is not complete", quoted(request.user_id))
            return None

    def find(self, user_id: str, key: str) -> Request | None:
        """Return a request that the server can complete; None if it is none.

        In an ndb context, whose namespace is the request's.
        """
        return self._completable(rows.request_key(check_lock_id(user_id), key), math.inf)

    def context(self, *, own: bool = False) -> contextlib.AbstractContextManager[None]:
        """Open an ndb context where none is open; an own one in any case for a request."""
        return self._client.context("the flows are", own=own)

    def run(
        self,
        request: Request,
        function: Callable[[Flow], Any] | None = None,
        *,
        wait_timeout: float | None = None,
        refuse: bool = False,
        keep_hours: float | None = None,
    ) -> Answer:
        """Run a function for a request, or return the answer of an earlier one. In an ndb context.

        Args:
            request: the request.
            function: returns a JSON value or an `Answer`, unless it has answered in
                `flow.last()`; by default the registered one.
            wait_timeout: the longest wait for the user's lock; by default the policy's.
            refuse: whether the same request that is running is refused instead of waited for.
            keep_hours: how long the answer is kept; by default as registered.

        Raises:
            IdempotencyKeyRefused: the key is malformed.
            IdempotencyKeyReused: it belongs to other parameters.
            RequestRunning: the same request is running.
            LockTimeout: the user's lock was not free in time.
            FlowTakenOver: another attempt has taken over.
        """
        if function is None:
            if request.flow not in self._registered:
                raise errors.ConfigurationError(
                    f"no flow has the name {request.flow!r:.80}. To fix it: register its function"
                )
            function, registered_hours = self._registered[request.flow]
            keep_hours = registered_hours if keep_hours is None else keep_hours
        keep_hours = self._keep_hours if keep_hours is None else check_keep_hours(keep_hours)
        run = Run(
            request=request,
            function=function,
            names=self._names,
            service=self._service,
            clock=self._clock,
            wait_timeout=wait_timeout,
            refuse=refuse,
            keep_seconds=keep_hours * 3600,
            claim_seconds=self._claim_seconds,
        )
        began = self._clock.now()
        try:
            answer = run.run()
        except Exception as error:
            self._tell(run, began, _OUTCOMES.get(type(error), "unfinished"), _shown(error))
            raise
        if answer.replayed:
            self._tell(run, began, "replayed")
        elif not is_kept(answer.status):
            self._tell(run, began, "unfinished", f"answered with {answer.status}")
        else:
            self._tell(run, began, "done" if run.attempt == 1 else "resumed")
        return answer

    def _tell(self, run: Run, began: float, outcome: str, error: str = "") -> None:
        if outcome in RequestServed.WARNED or LISTENERS.watched():
            user_id = run.request.user_id
            LISTENERS.emit(
                RequestServed(
                    user_id if isinstance(user_id, str) else None,
                    flow=run.request.flow,
                    outcome=outcome,
                    attempt=run.attempt,
                    seconds=self._clock.now() - began,
                    error=error[:_MOST_ERROR],
                    namespace=current_namespace(),
                )
            )


@contextlib.contextmanager
def _alone(what: str) -> Iterator[None]:
    """Let an error of one row, such as contention, stop no others."""
    try:
        yield
    except Exception as error:
        if is_outage(error):
            raise
        log.warning("%s: %s", what, _shown(error))


def _shown(error: Exception) -> str:
    """Return an error for the log: of the app's own without the text, which may have secrets."""
    if isinstance(error, errors.WriteViolation):  # its text has been logged
        return type(error).__name__
    if isinstance(error, errors.UserLockError):
        return f"{type(error).__name__}: {error}"
    return f"{type(error).__name__} at {raised_at(error)}"


def service_of(flows: Flows) -> LockService | None:
    """Return the source of the locks that flows take outside of a scope, if there is one."""
    return flows._service or defaults.service


def name_of_function(function: Callable[..., Any]) -> str:
    """Return the name of a flow whose function is given none."""
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


def check_function(name: str, function: Callable[..., Any]) -> None:
    """Refuse a function whose answers cannot be stored: a coroutine or a generator."""
    check_kind("name", name, str, "a str")
    if runs_later(function):
        raise errors.ConfigurationError(
            f"flow {name}: the answer of a coroutine or generator cannot be stored. To fix it: "
            f"make it a plain function"
        )


def check_keep_hours(hours: float) -> float:
    """Return the time for which an answer is kept, in hours, or raise TypeError or ValueError."""
    # Longer than a copy of the commit that began it may be under way (`_userlock_stays`).
    return check_number("keep_hours", hours, least=0.1, most=_MOST_KEPT_HOURS, unit="hours")


def complete_by_relay(flows: Flows, outbox: Outbox) -> None:
    """Let the relays of an outbox complete unfinished requests.

        flows = Flows(client=ndb.Client)
        complete_by_relay(flows, outbox)

    A request is completed five minutes after its attempt, under its user's lock, with batch
    priority. One that fails again is tried after twice the time, at most an hour, and never given
    up; `userlock flows list` shows it.

    Args:
        flows: their functions, and completable views.
        outbox: its workers know these functions, too.

    Raises:
        ConfigurationError: it completes the requests of other flows.
    """

    check_kind("flows", flows, Flows, "the app's Flows")
    if _COMPLETE in outbox.jobs:
        raise errors.ConfigurationError(
            "this outbox completes the requests of other Flows already. To fix it: make one Flows "
            "for all views and functions"
        )

    @outbox.job(name=_COMPLETE, ordered=False)
    def complete_request(user_id: str, key: str) -> None:
        request = flows.find(user_id, key)
        if request is not None:
            flows.complete_one(request)

    def stage(request: Request) -> None:
        if flows.put_off(request):
            complete_request.stage(request.user_id, request.key, dedupe=request.key)

    def stage_all() -> None:
        for request in itertools.islice(flows.unfinished(share=_MOST_OF_ONE), _MOST):
            with in_namespace(request.namespace), _alone("a request is not completed yet"):
                ndb.transaction(functools.partial(stage, request))

    outbox.each_minute(stage_all)
