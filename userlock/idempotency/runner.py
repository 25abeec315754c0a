"""Runs a request once, however often it is sent, and replays its answer.

first                             the row                  the same again
look up: none
lock the user ◀────────────────────────────────────────── look up: none; waits for the lock
phases, calls: insert, token a ─▶ a
the last transaction ───────────▶ the answer
leave the lock                                             look up: the answer
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import secrets
from collections.abc import Callable, Collection
from typing import Any

from google.cloud import ndb

from userlock.clock import Clock
from userlock.errors import EntityExistsError, LockTimeout, NotStorable, RequestRunning
from userlock.idempotency import rows
from userlock.idempotency.answers import Answer, is_kept, json_answer
from userlock.idempotency.flow import Finished, Flow
from userlock.idempotency.rows import Request, RequestRow
from userlock.idempotency.user_lock import UserLock
from userlock.json_values import written
from userlock.lock.held_lock import HeldLock, was_contended
from userlock.lock.scope import current_scope, scope
from userlock.lock.service import LockService
from userlock.ndb.context import in_transaction
from userlock.ndb.owners import micros_now
from userlock.ndb.transactions import is_conflict

log = logging.getLogger(__name__)

#: How often the function is run in one attempt, if its last transaction conflicts.
_MOST_RUNS = 4


@dataclasses.dataclass(kw_only=True)
class Run:
    """A run of a request: one look-up if it was answered before.

    Attributes:
        attempt: its number; 0 before it has begun.
    """

    request: Request
    function: Callable[[Flow], Any]
    names: Collection[str]
    service: LockService | None
    clock: Clock
    wait_timeout: float | None
    refuse: bool
    keep_seconds: float
    claim_seconds: float
    attempt: int = 0

    def run(self) -> Answer:
        self.request = rows.checked(self.request)
        self.key = rows.request_key(self.request.user_id, self.request.key)
        if in_transaction():
            raise RuntimeError(
                f"{self.request.flow} has transactions of its own, and is called in one"
            )
        seen = self._look_up()
        if seen and seen["status"] is not None:
            return _replay(seen)
        refuse = self.refuse and bool(seen and seen["token"])  # another attempt has begun
        waits = 0 if refuse else self.wait_timeout
        outer = current_scope()  # its locks are then ours
        with scope(self.service) if outer is None else contextlib.nullcontext(outer) as opened:
            try:
                with UserLock(opened, self.key, self.request.user_id, waits) as lock:
                    return self._run(seen, lock)
            except LockTimeout:
                if refuse:
                    raise self._running(1) from None
                raise

    def _run(self, seen: dict[str, Any] | None, lock: UserLock) -> Answer:
        if was_contended(lock.held):
            seen = self._look_up()  # the same request may have had the lock
            if seen and seen["status"] is not None:
                return _replay(seen)
        # If it is stored first, the server can complete it, and the same again is refused at once.
        stored = self.request.completable or self.refuse
        row, fields = None, {}
        if seen is None:
            fields = self._new(lock.held)
            row = self._inserted(fields) if stored else None
        if row is None and (seen is not None or stored):
            row = self._resume(lock)
            if row.is_finished:
                return _replay(row.fields)
        if row is not None:
            fields = row.fields
        self.attempt = fields["attempts"]
        seconds = self.keep_seconds, self.claim_seconds
        flow = Flow(self.key, row, fields, self.clock, *seconds, self.request, lock)
        try:
            answer = self._answer_of(flow)
            if flow.answer is None and is_kept(answer.status):
                flow.finish(answer)
        except Exception:
            flow.give_back()
            raise
        if flow.answer is None:
            flow.give_back()
        return answer

    def _answer_of(self, flow: Flow) -> Answer:
        """Return the function's answer, which may not be stored yet."""
        for run in range(1, _MOST_RUNS + 1):
            try:
                result = self.function(flow)
                break
            except Finished as end:
                return end.answer
            except Exception as error:
                if flow.answer is not None:
                    log.exception("flow %s has failed after its answer", self.request.flow)
                    return flow.answer
                if not is_conflict(error) or run == _MOST_RUNS:
                    raise
                # The last transaction has met another one. What is stored is not done again.
                flow.restart()
        if flow.answer is not None:
            return flow.answer
        return result if isinstance(result, Answer) else self._answer(result)

    def _inserted(self, fields: dict[str, Any]) -> Any:
        """Insert the row of a new request, and return it; None if the key exists."""
        row = RequestRow(key=self.key, **fields)
        try:
            row.put(use_cache=False, use_global_cache=False)
        except EntityExistsError:
            return None
        return row

    def _resume(self, lock: UserLock) -> Any:
        """Take an unfinished request over, after the attempt that is in a call; return its row."""
        seen = self._look_up()
        ended = ""
        if seen and seen["calling"] and seen["claimed_locked"]:
            try:
                if not lock.is_calling(0 if self.refuse else self.wait_timeout):
                    ended = seen["token"]
            except LockTimeout:
                raise self._running(1) from None
        return ndb.transaction(lambda: self._take(lock.held, ended))

    def _take(self, tenure: HeldLock, ended: str) -> Any:
        """Take an unfinished request over; return its row, or a finished one.

        `ended`: the token of an attempt that was in a call, and is not any more.
        """
        row = self.key.get(use_cache=False, use_global_cache=False)
        now = micros_now(self.clock)
        if row is None or row.has_expired(now):
            if row is not None:
                self.key.delete(use_cache=False, use_global_cache=False)
            row = RequestRow(key=self.key, **self._new(tenure))
        else:
            rows.check_same(row.fields, self.request, self.names)
            if row.is_finished:
                return row
            has_lost = row.token == ended if row.calling else row.claimed_locked
            if row.token and row.claimed_until > now and not (has_lost and not tenure.degraded):
                left = math.ceil((row.claimed_until - now) / 1e6)
                raise self._running(left)
            for name, value in self._claim(now, tenure, row.attempts + 1).items():
                setattr(row, name, value)
        row.put(use_cache=False, use_global_cache=False)
        return row

    def _new(self, tenure: HeldLock) -> dict[str, Any]:
        """Return the fields of a new request, claimed by its first attempt."""
        request, params, now = self.request, None, micros_now(self.clock)
        if request.completable:
            params = written([request.params, request.arguments]).decode()
        return {
            "user": request.user_id,
            "idempotency_key": request.key,
            "method": request.method,
            "path": request.path,
            "digest": request.digest,
            "params": params,
            "begun_at": now,
            **self._claim(now, tenure, 1),
        }

    def _claim(self, now: int, tenure: HeldLock, attempt: int) -> dict[str, Any]:
        """Return the fields that an attempt changes as it begins."""
        return {
            "flow": self.request.flow,  # a view may have been renamed since the last one
            "attempts": attempt,
            "token": secrets.token_hex(12),
            "claimed_until": now + round(self.claim_seconds * 1e6),
            "claimed_locked": not tenure.degraded,
            "calling": False,
            "complete_at": now + rows.complete_after(attempt),
        }

    def _look_up(self) -> dict[str, Any] | None:
        seen = RequestRow.fields_of(self.key, micros_now(self.clock))
        if seen:
            rows.check_same(seen, self.request, self.names)
        return seen

    def _answer(self, value: Any) -> Answer:
        try:
            return json_answer(value)
        except ValueError as error:
            raise self.request.error(
                NotStorable,
                f"the answer of {self.request.flow} cannot be stored: {error}",
            ) from None

    def _running(self, retry_after: int) -> RequestRunning:
        text = "the same request is running"
        return self.request.error(RequestRunning, text, retry_after=max(retry_after, 1))


def _replay(fields: dict[str, Any]) -> Answer:
    headers = tuple(map(tuple, fields["headers"]))
    return Answer(fields["status"], headers, fields["body"], replayed=True)
