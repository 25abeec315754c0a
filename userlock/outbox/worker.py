"""Runs jobs: claim, run, remove. Under the owner's lock; correct without it.

    worker A                      the row                     worker B
    lock; claim, token a ───────▶ a
    runs, is paused                                           the lock is free: its lease ended
                                  b ◀──────────────────────── claim, token b
                                                              runs
                                  gone ◀───────────────────── remove if b
    remove if a ────────────────▶ refused: `ClaimLost`

A message names a job; the worker runs the due jobs of its owner up to that one,
in their order, and for some seconds those after it. So any message does for any of them.
"""

from __future__ import annotations

import enum
import logging
import math
import random
import secrets
import traceback
from collections.abc import Mapping
from typing import Any

from google.cloud import ndb

from userlock.clock import Clock
from userlock.errors import (
    ClaimLost,
    DeadlockDetected,
    LockServiceUnavailable,
    LockTimeout,
    UnknownJob,
)
from userlock.events import LISTENERS, JobRan
from userlock.ids import quoted
from userlock.lock.api import global_lock
from userlock.lock.configuration import default_service
from userlock.lock.held_lock import HeldLock
from userlock.lock.lease import Priority
from userlock.lock.scope import LockScope, current_scope, scope
from userlock.lock.service import LockService
from userlock.ndb import transactions
from userlock.ndb.context import current_context
from userlock.outbox import arguments
from userlock.outbox.job import Job
from userlock.outbox.rows import (
    MOST_CAUSE,
    MOST_ERROR,
    JobRow,
    NameRow,
    jobs,
)
from userlock.outbox.waking import Due, Waker
from userlock.words import legible

log = logging.getLogger(__name__)

#: The rows of an owner that are read at once, and the most jobs that one message runs.
_WINDOW = 30
_MOST_RUNS = 100
#: How long the first message of a job waits for a busy owner, and later ones, in seconds. The
#: engine's threads wait with them: few for one owner.
_BUSY_WAITS = (2.0, 0.0)
_MOST_WAITING = 2
#: The pause after that, which doubles up to the second. In seconds.
_BUSY_PAUSES = (5.0, 60.0)
#: When the relay looks after a job that runs under the lock, in seconds.
_RUNNING_PAUSE = 60.0
#: Once its job is done, a message runs the later ones of the owner for so long, in seconds.
_DRAIN_SECONDS = 10.0
#: A job that is not registered here, of another version of the app, spends no attempt. The pauses
#: grow with the time that this goes on; after so long it is dead. In seconds.
_UNKNOWN_PAUSES = (20.0, 600.0)
_UNKNOWN_FOR = 3 * 86_400.0


class Outcome(enum.Enum):
    """The outcome of a message."""

    #: At least one job has run.
    RAN = "ran"
    #: There was no job to run: it is done, it is not due, or an earlier one holds it up.
    NOTHING = "nothing"
    #: Another request has the owner's lock. The job is asked for again; no attempt was spent.
    BUSY = "busy"


class _Claim:
    """A job that this worker has claimed."""

    def __init__(self, row: Any, token: str) -> None:
        self.key = row.key
        self.token = token
        self.row = row

    def current(self) -> Any:
        """Return the row, in a transaction.

        Raises:
            ClaimLost: it has another token, or is gone.
        """
        row = self.key.get()
        if row is None or not _is_mine(row, self.token):
            raise ClaimLost(
                f"job {self.row.job} was taken over by another worker while this one ran it",
                job=self.row.job,
            )
        return row


class Queue:
    """The ordered jobs of an owner, the first ones of them.

    What is read may be out of date by the time a job is claimed: the claim looks again.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._read()

    def _read(self) -> None:
        rows = jobs(
            JobRow.queued == True,  # noqa: E712
            ancestor=self._root,
        )
        found = rows.order(JobRow.key).fetch(_WINDOW, use_cache=False, use_global_cache=False)
        self._rows = sorted(found, key=lambda row: row.rank)
        self._more = len(found) == _WINDOW

    def remove(self, row: Any) -> None:
        """Take a job out that is done."""
        self._rows.remove(row)

    def first(self, now: int) -> Any:
        """Return the first job, if it may run now, or None."""
        if len(self._rows) < _WINDOW / 2 and self._more:
            self._read()
        for row in self._rows:
            if row.dead is None and row.ready_at <= now:
                return row
            # A job that was never due yet holds nobody up; one that failed does.
            if row.dead is not None or row.attempts or row.first_error is not None:
                return None
        return None


class Worker:
    """Runs the jobs of an outbox. Thread-safe.

    Args:
        jobs: the registered ones, by name.
        waker: the engines.
        clock: for all times.
        service: the source of locks; None for the configured one.
        claim_seconds: how long a claim without a confirmed lock keeps others out: longer than
            any job runs.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job[..., Any]],
        waker: Waker,
        clock: Clock,
        *,
        service: LockService | None,
        claim_seconds: float,
    ) -> None:
        self._jobs = jobs
        self._waker = waker
        self._clock = clock
        self._service = service
        self._claim_seconds = claim_seconds

    def run(self, key: Any) -> Outcome:
        """Run the due jobs of an owner, as `Outbox.run` says. In an ndb context.

        Raises:
            GoogleAPIError: Datastore does not answer. The engine, or the relay, comes again.
        """
        row = key.get(use_cache=False, use_global_cache=False)
        if row is None or row.dead is not None:
            return Outcome.NOTHING
        with batch_scope(self._service, f"job {row.job}") as opened:
            try:
                with global_lock(
                    row.owner,
                    wait_timeout=_BUSY_WAITS[row.tries > 0],
                    max_waiting=_MOST_WAITING,
                    heartbeat=not opened.service.requests_only,
                ) as tenure:
                    if row.ordered:
                        return self._run_owner(key, opened, tenure)
                    return self._run_alone(key, opened, tenure)
            except (LockTimeout, LockServiceUnavailable, DeadlockDetected) as error:
                log.debug("job %s of %s waits: %s", row.job, quoted(row.owner), error)
        self._put_off(key)
        return Outcome.BUSY

    def _run_alone(self, key: Any, opened: LockScope, tenure: HeldLock) -> Outcome:
        claim = self._claim(key, tenure)
        if claim is None:
            return Outcome.NOTHING
        self._run(claim, opened)
        return Outcome.RAN

    def _run_owner(self, until: Any, opened: LockScope, tenure: HeldLock) -> Outcome:
        """Run the jobs before that one, that one, and some of those after it that may run now."""
        ran = Outcome.NOTHING
        queue = Queue(until.root())
        ends = math.inf
        for _ in range(_MOST_RUNS):
            row = queue.first(self._now())
            claim = None if row is None else self._claim(row.key, tenure)
            if claim is None:
                return ran
            ran = Outcome.RAN
            if self._run(claim, opened) != "done":
                return ran  # it holds up the others
            if claim.key == until:
                ends = self._clock.now() + _DRAIN_SECONDS
            if self._clock.now() >= ends:
                return ran
            queue.remove(row)
            before, tenure = tenure, tenure.yield_to_waiters()
            if tenure is not before:  # others had the lock
                queue = Queue(until.root())
        return ran

    # --- claim ------------------------------------------------------------------------------

    def _claim(self, key: Any, tenure: HeldLock) -> _Claim | None:
        """Claim a job by compare-and-swap; None if another worker has it, or it has changed."""
        token = secrets.token_hex(12)
        locked = not tenure.degraded

        def claim() -> Any:
            now = self._now()
            current = key.get()
            if current is None or current.dead is not None or current.ready_at > now:
                return None
            if _is_claimed(current, now, locked=locked):
                return None
            if current.dedupe:
                self._free_name(current)
            current.attempts += 1
            current.wakes += 1
            current.tries = 0
            current.claim, current.claimed_locked = token, locked
            current.claimed_until = now + round(self._claim_seconds * 1e6)
            pause = _RUNNING_PAUSE if locked else self._claim_seconds
            current.look_at(now + round(pause * 1e6))
            current.put()
            return current

        claimed = ndb.transaction(claim)
        return None if claimed is None else _Claim(claimed, token)

    @staticmethod
    def _free_name(row: Any) -> None:
        """From its begin on, a job of the same name may be staged again."""
        key = ndb.Key(NameRow, row.dedupe, parent=row.key.parent())
        name = key.get()
        if name is not None and name.job_key == row.key:
            key.delete()
        row.dedupe = ""

    # --- run --------------------------------------------------------------------------------

    def _run(self, claim: _Claim, opened: LockScope) -> str:
        """Run it, and tell listeners. Returns the outcome."""
        row = claim.row
        began = self._clock.now()
        lag = self._clock.wall() - row.ready_at / 1e6
        job = self._jobs.get(row.job)
        if job is not None and row.attempts > job.retry.attempts:
            # Its last runs ended with their processes.
            outcome, error = self._failed(claim, None)
        else:
            outcome, error = self._run_once(claim, opened)
        seconds = self._clock.now() - began
        ran = JobRan(row.owner, row.job, outcome, row.attempts, max(lag, 0.0), seconds, error)
        LISTENERS.emit(ran)
        return outcome

    def _run_once(self, claim: _Claim, opened: LockScope) -> tuple[str, str]:
        """Run it; return the outcome and the error."""
        try:
            job = self._jobs.get(claim.row.job)
            if job is None:
                raise UnknownJob(
                    f"no job {claim.row.job} is registered in this process: it may belong to "
                    f"another version of the app, or its module was not imported",
                    job=claim.row.job,
                )
            args, kwargs = arguments.decode(claim.row.arguments)
            with current_context().new(namespace=claim.row.namespace or None).use():
                if job.transactional:
                    ndb.transaction(lambda: self._call_and_remove(job, claim, args, kwargs))
                    return "done", ""
                job.function(*args, **kwargs)
                opened.finish_writes()
                transactions.finish_writes()
        except ClaimLost:
            return "lost", ""
        except Exception as error:
            return self._failed(claim, error)
        return self._remove(claim)

    @staticmethod
    def _call_and_remove(
        job: Job[..., Any], claim: _Claim, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        """Run a job in the transaction that removes it."""
        claim.current()
        job.function(*args, **kwargs)
        claim.key.delete()

    @staticmethod
    def _remove(claim: _Claim) -> tuple[str, str]:
        def remove() -> None:
            claim.current()
            claim.key.delete()

        try:
            ndb.transaction(remove)
        except ClaimLost:
            return "lost", ""
        return "done", ""

    # --- failures ---------------------------------------------------------------------------

    def _failed(self, claim: _Claim, error: Exception | None) -> tuple[str, str]:
        """Note the error, and when the job runs again: or that it is dead."""
        job = self._jobs.get(claim.row.job)
        final = job is not None and error is not None and isinstance(error, job.never_retry)
        cause = "the process ended" if error is None else type(error).__name__
        text = cause if error is None else _described(error)

        def note() -> Any:
            row = claim.current()
            now = self._now()
            if row.first_error is None:
                row.first_error, row.first_error_at = text, now
            row.last_error, row.last_error_at = text, now
            row.end_claim()
            pause = None if final else self._pause(row, job, now)
            if pause is None:
                row.dead, row.died_at = legible(f"{row.job} {cause}", MOST_CAUSE), now
                if job is None or not job.blocks:
                    row.queued = None
                row.look_at(None)
            else:
                row.ready_at = now + round(pause * 1e6)
                row.ask_again_at(row.ready_at)
            row.put()
            return row

        try:
            row = ndb.transaction(note)
        except ClaimLost:
            return "lost", text
        if row.dead is not None:
            return "dead", text
        self._ask_again(row)
        return "failed", text

    @staticmethod
    def _pause(row: Any, job: Job[..., Any] | None, now: int) -> float | None:
        """Return the pause before the next attempt, and set its tier; None: there is none."""
        if job is None:
            row.attempts -= 1
            since = (now - row.first_error_at) / 1e6
            least, most = _UNKNOWN_PAUSES
            return min(max(since, least), most) if since < _UNKNOWN_FOR else None
        if row.attempts >= job.retry.attempts:
            return None
        row.tier = job.retry.tier(row.attempts, row.tier)
        return job.retry.pause(row.attempts)

    def _put_off(self, key: Any) -> None:
        """Let a job of a busy owner be asked for again. Spends no attempt."""

        def put_off() -> tuple[Any, float]:
            row = key.get()
            if row is None or row.due is None:
                return None, 0.0
            running = bool(row.claim) and row.claimed_until > self._now()
            first, most = _BUSY_PAUSES
            pause = _RUNNING_PAUSE if running else min(first * 2.0 ** min(row.tries, 9), most)
            pause *= random.uniform(0.5, 1)
            row.ask_again_at(self._now() + round(pause * 1e6))
            row.put()
            return None if running else row, pause

        row, pause = ndb.transaction(put_off)
        if row is not None:
            self._waker.wake([Due(row.key, row.tier, row.attempts, row.wakes, pause)])

    def _ask_again(self, row: Any) -> None:
        delay = (row.ready_at - self._now()) / 1e6
        self._waker.wake([Due(row.key, row.tier, row.attempts, row.wakes, max(delay, 0.0))])

    def _now(self) -> int:
        return round(self._clock.wall() * 1e6)


def batch_scope(service: LockService | None, request: str) -> Any:
    """Open a batch scope: with that service, that of the scope around it, or the configured one."""
    outer = current_scope()
    return scope(
        service or (default_service() if outer is None else outer.service),
        settings=None if outer is None else outer.settings,
        priority=Priority.BATCH,
        request=request,
    )


def _is_claimed(row: Any, now: int, *, locked: bool) -> bool:
    """Return whether another worker may be running it.

    One that had the lock has lost it if this one has it.
    """
    return bool(row.claim) and row.claimed_until > now and not (locked and row.claimed_locked)


def _is_mine(row: Any, token: str) -> bool:
    """Return whether the worker with that token still has the job."""
    return bool(row.claim == token)


def _described(error: BaseException) -> str:
    """Return an error and its last call site, for people, in one line that a row can hold."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # a `__str__` that raises
        text = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return legible(text, MOST_ERROR - 300) + legible(place[-300:], 300)
