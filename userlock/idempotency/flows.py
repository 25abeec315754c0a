"""Runs a request once, however often it is sent, and replays its answer.

first                             the row                  the same again
look up: none
lock the user ◀────────────────────────────────────────── look up: none; waits for the lock
insert, token a ────────────────▶ a
phases, calls
the last transaction ───────────▶ the answer
leave the lock                                             look up: the answer
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import math
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.api_core.exceptions import Aborted
from google.cloud import ndb

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.errors import (
    ConfigurationError,
    EntityExistsError,
    IdempotencyKeyRefused,
    IdempotencyKeyReused,
    LockTimeout,
    NotStorable,
    RequestRunning,
)
from userlock.idempotency.answers import Answer, json_answer
from userlock.idempotency.flow import Finished, Flow
from userlock.idempotency.rows import DONE, OPEN, RequestRow, request_key, requests_before
from userlock.ids import quoted
from userlock.json_values import check, written
from userlock.lock.api import global_lock
from userlock.lock.held_lock import HeldLock
from userlock.lock.lease import check_lock_id
from userlock.lock.scope import LockScope, current_scope, scope
from userlock.lock.service import LockService, check_service

log = logging.getLogger(__name__)

_MOST_KEPT_HOURS = 24 * 365
#: How often the function is run in one attempt, if its last transaction conflicts.
_MOST_RUNS = 4
_VISIBLE = re.compile(r"[!-~]*")


class Request(NamedTuple):
    """A request with an idempotency key.

    Attributes:
        user_id: the owner of the key, a lock id.
        key: the idempotency key.
        flow: the name of the function that serves it.
        params: its parameters, a JSON value: for the function, and for the server to complete it.
        method, path: of the HTTP request; empty for other calls.
        digest: of parameters that `params` does not have; empty: of `params`.
    """

    user_id: str
    key: str
    flow: str
    params: Any = None
    method: str = ""
    path: str = ""
    digest: str = ""


class Flows:
    """Requests that happen once. Thread-safe.

    Args:
        service: the source of locks outside of a scope; by default the configured one.
        keep_hours: how long an answer is kept after the request is finished.
        key_length: the least and the most characters of an idempotency key that a client sends.
        claim_seconds: how long an attempt without a confirmed lock keeps others out.
        clock: for all times.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        *,
        service: LockService | None = None,
        keep_hours: float = 24.0,
        key_length: tuple[int, int] = (20, 100),
        claim_seconds: float = 60.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        least, most = key_length
        if not 1 <= least <= most <= 1000:
            raise ValueError(f"key_length must be from 1 to 1000, not {key_length!r:.80}")
        if not 0 < keep_hours <= _MOST_KEPT_HOURS:
            raise ValueError(f"keep_hours must be above 0, at most a year, not {keep_hours!r}")
        if not 0 < claim_seconds < math.inf:
            raise ValueError(f"claim_seconds must be above 0, not {claim_seconds!r}")
        self._service = None if service is None else check_service(service)
        self._keep_seconds = keep_hours * 3600
        self._key_length = least, most
        self._claim_seconds = claim_seconds
        self._clock = clock
        self._functions: dict[str, Callable[[Flow], Any]] = {}

    # --- plain functions --------------------------------------------------------------------

    def function(
        self, function: Callable[..., Any] | None = None, *, name: str | None = None
    ) -> Any:
        """Make a function run once for each key; a decorator, for jobs and scripts.

            @flows.function
            def refund(flow, cents): ...

            refund("ann", "payment-1234-refund", cents=500)

        It is called with the user, the key and its parameters by name, and
        returns what it has returned, or answered in `flow.last()`.

        Args:
            function: it gets a `Flow` and the parameters.
            name: the name in the rows, by default module and function.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            known = name or f"{function.__module__}.{function.__qualname__}"
            if known in self._functions:
                raise ConfigurationError(f"two flows have the name {known}. To fix it: give name=")
            self._functions[known] = lambda flow: function(flow, **flow.params)

            @functools.wraps(function)
            def call(user_id: str, idempotency_key: str, /, **params: Any) -> Any:
                request = Request(user_id, idempotency_key, known, params)
                return self.run(request).value

            return call

        return register if function is None else register(function)

    # --- what is left -----------------------------------------------------------------------

    def reap(self, *, stopped: Callable[[], bool] = lambda: False) -> int:
        """Remove the answers that are no longer kept; return how many. In an ndb context.

        A request that is not finished is never removed.
        """
        removed = 0
        now = self._now()
        for key in requests_before(DONE, now):
            if stopped():
                break
            removed += ndb.transaction(lambda key=key: self._remove(key, now))
        return removed

    @staticmethod
    def _remove(key: Any, now: int) -> bool:
        row = key.get(use_cache=False, use_global_cache=False)
        if row is None or not row.is_finished or not row.has_expired(now):
            return False
        key.delete(use_cache=False, use_global_cache=False)
        return True

    def complete(self, *, older_than: float = 300.0) -> Iterator[tuple[Request, Answer | None]]:
        """Complete unfinished requests, as if they were sent again; yield each with its answer.

        Those of functions that are not registered here, or whose parameters are not
        stored, are left to their clients. None stands for one that has failed again;
        the log says why. In an ndb context.

        Args:
            older_than: in seconds: younger ones may still be running.
        """
        for key in requests_before(OPEN, self._now() - round(older_than * 1e6)):
            row = key.get(use_cache=False, use_global_cache=False)
            if row is None or row.is_finished or row.flow not in self._functions:
                continue
            if row.params is None:
                continue
            params = json.loads(row.params)
            request = Request(
                row.user, row.idempotency_key, row.flow, params, row.method, row.path, row.digest
            )
            try:
                yield request, self.run(request, refuse=True)
            except Exception:
                log.exception("a request of %s is not complete", quoted(row.user))
                yield request, None

    # --- a request --------------------------------------------------------------------------

    def run(
        self,
        request: Request,
        function: Callable[[Flow], Any] | None = None,
        *,
        wait_timeout: float | None = None,
        refuse: bool = False,
    ) -> Answer:
        """Run a function for a request, or return the answer of an earlier one. In an ndb context.

        Args:
            request: the request.
            function: returns a JSON value or an `Answer`, unless it has answered in
                `flow.last()`; by default the registered one.
            wait_timeout: the longest wait for the user's lock; by default the policy's.
            refuse: whether the same request that is running is refused instead of waited for.

        Raises:
            IdempotencyKeyRefused: the key is malformed.
            IdempotencyKeyReused: it belongs to other parameters.
            RequestRunning: the same request is running.
            LockTimeout: the user's lock was not free in time.
            FlowTakenOver: another attempt has taken over.
        """
        user_id = check_lock_id(request.user_id)
        self._check(request)
        digest = request.digest or _digest_of(request)
        request = request._replace(user_id=user_id, digest=digest)
        if function is None:
            function = self._functions[request.flow]
        key = request_key(request.user_id, request.key)
        row = self._look_up(key)
        if row is not None and row.is_finished:
            return self._replay(row, request)
        self._check_same(row, request)
        with self._scope() as opened:
            waits = 0 if refuse and row is not None else wait_timeout
            heartbeat = not opened.service.requests_only
            try:
                with global_lock(
                    request.user_id, wait_timeout=waits, heartbeat=heartbeat
                ) as tenure:
                    return self._run(key, row, request, function, tenure)
            except LockTimeout:
                if refuse and row is not None:
                    raise self._running(request, 1) from None
                raise

    def _run(
        self,
        key: Any,
        row: Any,
        request: Request,
        function: Callable[[Flow], Any],
        tenure: HeldLock,
    ) -> Answer:
        """Begin or resume it, under the user's lock."""
        if row is None and tenure.lease.contended:
            row = self._look_up(key)  # the same request may have had the lock
        begun = self._insert(key, request, tenure) if row is None else None
        if begun is None:
            begun = ndb.transaction(lambda: self._take(key, request, tenure))
            if begun.is_finished:
                return self._replay(begun, request)
        flow = Flow(begun, self._clock, self._keep_seconds, request.params)
        for run in range(1, _MOST_RUNS + 1):
            try:
                result = function(flow)
                break
            except Finished as end:
                return end.answer
            except Aborted:
                # The last transaction has met another one. What is stored is not done again.
                if run == _MOST_RUNS:
                    raise
                flow.restart()
        if flow.answer is not None:
            return flow.answer
        answer: Answer = result if isinstance(result, Answer) else self._answer(result, request)
        if answer.status < 500:
            flow.finish(answer)
        return answer

    def _insert(self, key: Any, request: Request, tenure: HeldLock) -> Any:
        """Store a new request, by one commit; return its row, or None if there is one."""
        row = self._new(key, request)
        self._claim(row, tenure)
        try:
            row.put(use_cache=False, use_global_cache=False)
        except EntityExistsError:
            return None
        return row

    def _take(self, key: Any, request: Request, tenure: HeldLock) -> Any:
        """Take an unfinished request over, in a transaction; return its row, or a finished one.

        Raises:
            RequestRunning: another attempt may be running.
        """
        row = key.get(use_cache=False, use_global_cache=False)
        now = self._now()
        if row is None or row.has_expired(now):
            if row is not None:
                key.delete(use_cache=False, use_global_cache=False)
            row = self._new(key, request)
        elif row.is_finished:
            return row
        else:
            self._check_same(row, request)
            if (
                row.token
                and row.claimed_until > now
                and not (row.claimed_locked and not tenure.degraded)
            ):
                left = math.ceil((row.claimed_until - now) / 1e6)
                raise self._running(request, left)
        self._claim(row, tenure)
        row.put(use_cache=False, use_global_cache=False)
        return row

    def _new(self, key: Any, request: Request) -> Any:
        return RequestRow(
            key=key,
            user=request.user_id,
            idempotency_key=request.key,
            flow=request.flow,
            method=request.method,
            path=request.path,
            digest=request.digest,
            params=None if request.params is None else written(request.params),
            begun_at=self._now(),
        )

    def _claim(self, row: Any, tenure: HeldLock) -> None:
        row.token = secrets.token_hex(12)
        row.attempts += 1
        row.claimed_locked = not tenure.degraded
        row.claimed_until = self._now() + round(self._claim_seconds * 1e6)

    # --- answers ----------------------------------------------------------------------------

    def _look_up(self, key: Any) -> Any:
        row = key.get(use_cache=False, use_global_cache=False)
        if row is not None and row.has_expired(self._now()):
            return None
        return row

    def _replay(self, row: Any, request: Request) -> Answer:
        self._check_same(row, request)
        headers = tuple((str(name), str(value)) for name, value in row.headers)
        return Answer(row.status, headers, row.body, replayed=True)

    @staticmethod
    def _answer(value: Any, request: Request) -> Answer:
        try:
            return json_answer(value)
        except ValueError as error:
            raise NotStorable(
                f"the answer of {request.flow} cannot be stored: {error}. To fix it: return "
                f"strings, numbers, lists and dicts",
                user_id=request.user_id,
                key=request.key,
            ) from None

    # --- checks -----------------------------------------------------------------------------

    def _check(self, request: Request) -> None:
        least, most = self._key_length
        least = least if request.method else 1  # the app's own keys are as long as it likes
        key = request.key
        good = isinstance(key, str) and least <= len(key) <= most and _VISIBLE.fullmatch(key)
        if not good:
            raise IdempotencyKeyRefused(
                f"an idempotency key has {least} to {most} visible ASCII characters, for example "
                f"those of a random UUID",
                user_id=request.user_id,
                key=str(key)[:most],
            )

    @staticmethod
    def _check_same(row: Any, request: Request) -> None:
        if row is None:
            return
        stored = row.flow, row.method, row.path, row.digest
        if stored != (request.flow, request.method, request.path, request.digest):
            raise IdempotencyKeyReused(
                "the idempotency key belongs to a request with other parameters. To fix it: send "
                "each request with a key of its own",
                user_id=request.user_id,
                key=request.key,
            )

    @staticmethod
    def _running(request: Request, retry_after: int) -> RequestRunning:
        return RequestRunning(
            "the same request is running",
            user_id=request.user_id,
            key=request.key,
            retry_after=max(retry_after, 1),
        )

    def _scope(self) -> contextlib.AbstractContextManager[LockScope]:
        """Open a scope, unless there is one, whose locks are then ours."""
        outer = current_scope()
        return scope(self._service) if outer is None else contextlib.nullcontext(outer)

    def _now(self) -> int:
        return round(self._clock.wall() * 1e6)


def _digest_of(request: Request) -> str:
    """Return a digest of the parameters; of equal ones the same."""
    try:
        check(request.params, "the parameters")
    except ValueError as error:
        raise NotStorable(
            f"the parameters of {request.flow} cannot be stored: {error}",
            user_id=request.user_id,
            key=request.key,
        ) from None
    return hashlib.sha256(written(request.params, sort_keys=True)).hexdigest()
