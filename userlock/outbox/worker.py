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

import contextlib
import enum
import functools
import logging
import math
import random
import secrets
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.clock import Clock
from userlock.errors import (
    ClaimLost,
    DeadlockDetected,
    LockServiceUnavailable,
    LockTimeout,
    StaleWriteError,
    UnknownJob,
)
from userlock.events import LISTENERS, JobRan
from userlock.ids import quoted
from userlock.lock.api import global_lock
from userlock.lock.configuration import default_service
from userlock.lock.held_lock import HeldLock, was_contended
from userlock.lock.lease import Priority
from userlock.lock.scope import LockScope, current_scope, scope
from userlock.lock.service import LockService
from userlock.ndb import transactions
from userlock.ndb.direct import swap
from userlock.ndb.owners import in_namespace_of
from userlock.ndb.patches import look_up
from userlock.ndb.transactions import is_conflict
from userlock.numbers import check_seconds
from userlock.outbox import arguments
from userlock.outbox.context import JobContext, RetryAfter, running
from userlock.outbox.job import Job
from userlock.outbox.rows import (
    MOST_CAUSE,
    MOST_ERROR,
    JobRow,
    is_ordered,
    queued_jobs,
)
from userlock.outbox.waking import Due, Waker, text_of
from userlock.words import legible

log = logging.getLogger(__name__)

#: The most jobs that one message runs.
_MOST_RUNS = 100
#: The ordered jobs of an owner that are read with one of them.
_FEW = 8
#: The length of arguments that are kept while a job waits for its turn, in bytes.
_SHORT = 2_000
#: How long the first message of a job waits for a busy owner, and later ones, in seconds. The
#: engine's threads wait with them: few for one owner.
_BUSY_WAITS = (2.0, 0.0)
_MOST_WAITING = 2
#: The pause after that, which doubles up to the second. In seconds.
_BUSY_PAUSES = (5.0, 60.0)
#: The pauses of a transaction that meets others, in seconds.
_FIRST_PAUSE, _MOST_PAUSE = 0.1, 5.0
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


class _Refused(enum.Enum):
    """Why a job cannot be claimed."""

    #: Another worker has done it.
    GONE = "gone"
    #: Another worker may be running it, or it has been put off.
    TAKEN = "taken"


class _Claim:
    """A job that this worker has claimed, with a token; or that needs none (`_ends_by_itself`)."""

    def __init__(self, row: Any, token: str) -> None:
        self.key = row.key
        self.token = token
        self.row = row

    @property
    def context(self) -> JobContext:
        """Return the job as it sees itself."""
        row = self.row
        return JobContext(text_of(row.key), row.job, row.owner, row.attempts)

    def current(self) -> Any:
        """Return the row as it is now.

        Raises:
            ClaimLost: it has another token, or is gone. Without a token: it has been run.
        """
        return self.check(self.key.get(use_cache=False, use_global_cache=False))

    def check(self, row: Any) -> Any:
        """Return the row, as it is now, if it is still this worker's. Errors: of `current`."""
        if row is None or not _is_mine(row, self):
            raise ClaimLost(
                f"job {self.row.job} was taken over by another worker while this one ran it",
                job=self.row.job,
            )
        return row


class _Waiting(NamedTuple):
    """A job in its owner's order."""

    rank: tuple[int, int]
    key: Any
    tier: str
    #: Not before that time; 0: since its commit. In microseconds since 1970.
    ready_at: int
    #: Whether it holds the later ones up: one that was never due yet does not.
    holds_up: bool
    dead: bool
    #: As it was read; None if it has long arguments, so that many of them find room.
    row: Any


class Queue:
    """The ordered jobs of an owner, in the order of the commits that staged them.

    All of them are read: only the rows tell that order, and no key or index does. What is
    read may be out of date by the time a job is claimed: the claim looks again.
    """

    def __init__(self, outbox: str, root: Any, rows: Iterable[Any] | None = None) -> None:
        if rows is None:
            rows = queued_jobs(outbox, root).iter(use_cache=False, use_global_cache=False)
        self._jobs = sorted(map(_waiting, rows))

    def remove(self, job: _Waiting) -> None:
        """Take a job out."""
        self._jobs.remove(job)

    def first(self, now: int) -> _Waiting | None:
        """Return the first job, if it may run now, or None."""
        for job in self._jobs:
            if not job.dead and job.ready_at <= now:
                return job
            if job.holds_up:
                return None
        return None


def _waiting(row: Any) -> _Waiting:
    return _Waiting(
        row.rank,
        row.key,
        row.tier,
        row.ready_at if row.delayed else 0,
        row.dead is not None or bool(row.attempts) or row.first_error is not None,
        row.dead is not None,
        row if len(row.arguments or b"") <= _SHORT else None,
    )


class Worker:
    """Runs the jobs of an outbox. Thread-safe.

    Attributes:
        within: make the contexts in which each job runs.
    """

    def __init__(
        self,
        outbox: str,
        jobs: Mapping[str, Job[..., Any]],
        waker: Waker,
        clock: Clock,
        *,
        service: LockService | None,
        claim_seconds: float,
    ) -> None:
        self._outbox = outbox
        self._jobs = jobs
        self._waker = waker
        self._clock = clock
        self._service = service
        self._claim_seconds = check_seconds("claim_seconds", claim_seconds, most=86_400)
        self.within: list[Callable[[], contextlib.AbstractContextManager[Any]]] = []

    def run(self, key: Any) -> Outcome:
        """Run the due jobs of an owner, as `Outbox.run` says. In an ndb context."""
        with in_namespace_of(key):
            return self._run_job(key)

    def _look(self, key: Any) -> tuple[Any, list[Any] | None]:
        """Return the row of a job, or None; and its owner's ordered ones, if they are few."""
        if is_ordered(key):
            rows = JobRow.all_below(key.root(), "queued", self._outbox, _FEW)
            if rows is not None:
                return next((each for each in rows if each.key == key), None), rows
        return key.get(use_cache=False, use_global_cache=False), None

    def _run_job(self, key: Any) -> Outcome:
        row, few = self._look(key)
        if row is None or row.dead is not None or row.outbox != self._outbox:
            return Outcome.NOTHING
        with batch_scope(self._service, f"job {row.job}") as opened:
            if row.owner is None:
                return self._run_alone(row, opened, None)
            try:
                with global_lock(
                    row.owner,
                    wait_timeout=_BUSY_WAITS[row.tries > 0],
                    max_waiting=_MOST_WAITING,
                    heartbeat=not opened.service.requests_only,
                ) as tenure:
                    contended = was_contended(tenure)
                    if row.ordered:
                        return self._run_owner(key, opened, tenure, None if contended else few)
                    if contended:
                        row = key.get(use_cache=False, use_global_cache=False)
                        if row is None:
                            return Outcome.NOTHING
                    return self._run_alone(row, opened, tenure)
            except (LockTimeout, LockServiceUnavailable, DeadlockDetected) as error:
                log.debug("job %s of %s waits: %s", row.job, quoted(row.owner), error)
        self._put_off(key)
        return Outcome.BUSY

    def _run_alone(self, row: Any, opened: LockScope, tenure: HeldLock | None) -> Outcome:
        claim = self._claim(row.key, tenure, row)
        if not isinstance(claim, _Claim):
            return Outcome.NOTHING
        self._run(claim, opened)
        return Outcome.RAN

    def _run_owner(
        self, until: Any, opened: LockScope, tenure: HeldLock, rows: list[Any] | None
    ) -> Outcome:
        """Run the jobs until that one, and some later ones that may run now.

        `rows`: the owner's ordered jobs as they were read before the lock; None: not read.
        """
        ran = Outcome.NOTHING
        queue = Queue(self._outbox, until.root(), rows)
        ends = math.inf
        for _ in range(_MOST_RUNS):
            job = queue.first(self._now())
            if job is None:
                return ran
            claim = self._claim(job.key, tenure, job.row)
            if isinstance(claim, _Claim):
                ran = Outcome.RAN
                if self._run(claim, opened) != "done":
                    return ran  # it holds up the others
            elif claim is _Refused.TAKEN and rows is not None:  # before the lock: look again
                queue, rows = Queue(self._outbox, until.root()), None
                continue
            elif claim is _Refused.TAKEN:
                return ran
            if job.key == until:
                ends = self._clock.now() + _DRAIN_SECONDS
            if self._clock.now() >= ends:
                return ran
            queue.remove(job)
            tenure = tenure.yield_to_waiters()
        return ran

    def cancel(self, key: Any) -> bool:
        """Remove a job that no worker runs, in the running transaction; return whether it did."""
        row = key.get()
        if row is None or row.outbox != self._outbox or _is_claimed(row, self._now(), locked=False):
            return False
        if row.name_key is not None:
            self._free_name(row, row.name_key)
        key.delete()
        return True

    # --- claim ------------------------------------------------------------------------------

    def _claim(self, key: Any, tenure: HeldLock | None, row: Any = None) -> _Claim | _Refused:
        """Claim a job by compare-and-swap, unless another worker has it.

        `row`: as it was read before. If it has changed since, it is read again.
        """
        token = secrets.token_hex(12)
        locked = tenure is not None and not tenure.degraded
        while True:
            if row is None:
                row = key.get(use_cache=False, use_global_cache=False)
            if row is None:
                return _Refused.GONE
            name = row.name_key
            unseen = (
                name is None
                and locked
                and not (row.attempts or row.tries)
                and self._ends_by_itself(row)
            )
            if not self._note_claim(row, "" if unseen else token, locked=locked):
                return _Refused.TAKEN
            try:
                if name is not None:
                    ndb.transaction(functools.partial(self._put_and_free, row, name))
                    done = True
                else:
                    done = unseen or swap([row])[0]
            except StaleWriteError:
                done = False
            if done:
                return _Claim(row, row.claim)
            row = None

    def _ends_by_itself(self, row: Any) -> bool:
        """Return whether a job reads its row, and removes it, in its own transaction.

        At its first time it needs no claim: under the lock no other worker runs it, and without
        one that transaction fails. If the process dies, the relay asks for it, and notes that:
        later runs are counted before they begin.
        """
        job = self._jobs.get(row.job)
        return job is not None and job.transactional

    def _note_claim(self, row: Any, token: str, *, locked: bool) -> bool:
        """Note a claim in a row; return whether it can be claimed."""
        now = self._now()
        if row.dead is not None or not row.is_ready(now) or _is_claimed(row, now, locked=locked):
            return False
        row.attempts += 1
        row.tries = 0
        row.claim, row.claimed_locked = token, locked
        row.claimed_until = now + round(self._claim_seconds * 1e6)
        pause = _RUNNING_PAUSE if locked else self._claim_seconds
        row.look_at(now + round(pause * 1e6))
        return True

    def _put_and_free(self, row: Any, name: Any) -> None:
        """Put a row in a transaction; from then on, a job of the same name may be staged again."""
        self._free_name(row, name)
        row.name = None
        row.put()

    @staticmethod
    def _free_name(row: Any, name: Any) -> None:
        named = name.get()
        if named is not None and named.job_key == row.key:
            name.delete()

    # --- run --------------------------------------------------------------------------------

    def _run(self, claim: _Claim, opened: LockScope) -> str:
        """Run it, and tell listeners. Returns the outcome."""
        row, attempt = claim.row, claim.row.attempts
        began = self._clock.now()
        lag = self._clock.wall() - row.ready_at / 1e6
        job = self._jobs.get(row.job)
        if job is not None and row.attempts > job.retry.attempts:
            # Its last runs ended with their processes.
            outcome, error = self._failed(claim, None)
        else:
            outcome, error = self._run_once(claim, opened)
        seconds = self._clock.now() - began
        ran = JobRan(row.owner, row.job, outcome, attempt, max(lag, 0.0), seconds, error)
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
            with contextlib.ExitStack() as around:
                for context in self.within:
                    around.enter_context(context())
                around.enter_context(running(claim.context, job.time_limit))
                if job.transactional:
                    ndb.transaction(lambda: self._call_and_remove(job, claim, args, kwargs))
                    return "done", ""
                job.function(*args, **kwargs)
                opened.finish_writes()
                transactions.finish_writes()
        except ClaimLost:
            return "lost", ""
        except (Exception, SystemExit) as error:  # a job that exits ends itself, not its worker
            return self._failed(claim, error)
        return self._remove(claim)

    @staticmethod
    def _call_and_remove(
        job: Job[..., Any], claim: _Claim, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        """Run a job in the transaction that removes it."""
        row = look_up(claim.key)  # with the function's own first look-up
        job.function(*args, **kwargs)
        claim.check(row())
        claim.key.delete()

    def _remove(self, claim: _Claim) -> tuple[str, str]:
        try:
            self._insist(lambda row: swap([row], delete=True)[0], claim)
        except ClaimLost:
            return "lost", ""
        return "done", ""

    def _insist(self, write: Callable[[Any], bool], claim: _Claim) -> Any:
        """Write the row of a claim until others are out of the way: no one else may end it.

        `write`: builds on the row that it is given; whether Datastore took it. Returns the row.
        """
        row, until, pause = claim.row, claim.row.claimed_until, _FIRST_PAUSE
        while True:
            try:
                if write(row):
                    return row
            except Exception as error:
                if not is_conflict(error) or self._now() >= until:
                    raise
                self._clock.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, _MOST_PAUSE)
            row = claim.current()

    # --- failures ---------------------------------------------------------------------------

    def _failed(self, claim: _Claim, error: BaseException | None) -> tuple[str, str]:
        """Note the error, and when the job runs again: or that it is dead."""
        job, attempts = self._jobs.get(claim.row.job), claim.row.attempts
        final = job is not None and error is not None and isinstance(error, job.never_retry)
        cause = "the process ended" if error is None else type(error).__name__
        text = cause if error is None else _described(error)

        def note(row: Any) -> bool:
            now = self._now()
            if row.first_error is None:
                row.first_error, row.first_error_at = text, now
            row.attempts = attempts
            row.last_error, row.last_error_at = text, now
            row.end_claim()
            pause = None if final else self._pause(row, job, now)
            if pause is not None and isinstance(error, RetryAfter):
                pause = error.seconds
            if pause is None:
                row.die(legible(f"{row.job} {cause}", MOST_CAUSE), now)
                if job is None or not job.blocks:
                    row.queued = None
            else:
                row.put_off_until(now + round(pause * 1e6))
                row.ask_again_at(row.ready_at)
            return swap([row])[0]

        try:
            row = self._insist(note, claim)
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
            self._waker.wake([Due(row.key, row.tier, pause)])

    def _ask_again(self, row: Any) -> None:
        delay = (row.ready_at - self._now()) / 1e6
        self._waker.wake([Due(row.key, row.tier, max(delay, 0.0))])

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


def _is_mine(row: Any, claim: _Claim) -> bool:
    """Return whether the worker with that claim still has the job."""
    is_run = not claim.token and row.attempts + 1 != claim.row.attempts
    return bool(row.claim == claim.token) and not is_run


def _described(error: BaseException) -> str:
    """Return an error and its last call site, for people, in one line that a row can hold."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # a `__str__` that raises
        text = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return legible(text, MOST_ERROR - 300) + legible(place[-300:], 300)
