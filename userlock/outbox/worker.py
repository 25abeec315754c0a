"""Runs jobs: claim, run, remove. Under the owner's lock; correct without it.

    worker A                      the row                     worker B
    lock; claim, token a ───────▶ a
    runs, is paused                                           the lock is free: its lease ended
                                  b ◀──────────────────────── claim, token b
                                                              runs
                                  gone ◀───────────────────── remove if b
    remove if a ────────────────▶ refused: `ClaimLost`

A message names a job; the worker runs the due jobs of its owner up to that one, in their order, and
for some seconds those after it. So any message does for any of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import logging
import math
import random
import secrets
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.cloud import ndb
from google.cloud.ndb.context import get_context

from userlock import errors
from userlock.clock import Clock
from userlock.events import LISTENERS, JobRan
from userlock.ids import quoted
from userlock.lock.api import global_lock
from userlock.lock.held_lock import HeldLock, was_contended
from userlock.lock.lease import Priority
from userlock.lock.scope import current_scope, scope
from userlock.lock.service import LockService
from userlock.ndb import transactions
from userlock.ndb.context import latest_of
from userlock.ndb.direct import swap
from userlock.ndb.owners import micros_now
from userlock.ndb.patches import look_up
from userlock.ndb.transactions import after_commit, is_conflict
from userlock.outbox.context import JobContext, RetryAfter, running
from userlock.outbox.job import Job
from userlock.outbox.rows import MOST_ERROR, JobRow, decoded, is_ordered, queued_jobs
from userlock.outbox.waking import Due, Waker, text_of
from userlock.words import legible

log = logging.getLogger(__name__)

#: The most jobs that one message runs.
_MOST_RUNS = 100
#: The ordered jobs of an owner that are read with one of them.
_FEW = 8
#: The length of arguments that are kept while a job waits for its turn, in bytes.
_SHORT = 2_000
#: How long the first message of a job waits for a busy owner, and later ones, in seconds. With it
#: waits a thread of the engine's: few for one owner.
_BUSY_WAITS = (2.0, 0.0)
_MOST_WAITING = 2
#: The pause after that, which doubles up to the second. In seconds.
_BUSY_PAUSES = (5.0, 60.0)
#: The errors of writes of a failed job that are logged.
_MOST_ERRORS = 100
#: The pauses of a transaction that meets others, in seconds.
_FIRST_PAUSE, _MOST_PAUSE = 0.1, 5.0
#: When the relay looks after a job that runs under the lock, in seconds.
_RUNNING_PAUSE = 60.0
#: Once its job is done, a message runs the later ones of the owner for so long, in seconds.
_DRAIN_SECONDS = 10.0
#: A job that is not registered here, of another version of the app, spends no attempt. Its pauses
#: grow with the time that this goes on; after so long it is dead. In seconds.
_UNKNOWN_PAUSES = (20.0, 600.0)
_UNKNOWN_FOR = 3 * 86_400.0


#: Its owner's lock cannot be had for now.
_BUSY = errors.LockTimeout, errors.LockServiceUnavailable, errors.DeadlockDetected


class Outcome(enum.Enum):
    """The outcome of a message: `RAN`: at least one job has run. `NOTHING`: there was none to run:
    it is done, or not due, or an earlier one holds it up. `BUSY`: another request has the owner's
    lock; the job is asked for again, and no attempt was spent.
    """

    RAN = "ran"
    NOTHING = "nothing"
    BUSY = "busy"


class _DoneBefore(errors.ClaimLost):
    """Another message's run had removed the job when this one's began, which took nothing over."""


class _Claim:
    """A job that this worker has claimed, with a token; or that needs none (see `_claim`)."""

    def __init__(self, row: Any) -> None:
        self.key = row.key
        self.token = row.claim
        self.row = row

    def current(self) -> Any:
        return self.check(self.key.get(use_cache=False, use_global_cache=False))

    def check(self, row: Any) -> Any:
        """Return the row, as it is now, or raise `ClaimLost`: it has another token, or is gone; or,
        without a token, has been run.
        """
        if row is None or not _is_mine(row, self):
            error = _DoneBefore if row is None and not self.token else errors.ClaimLost
            raise error(
                f"job {self.row.job} was taken over by another worker while this one ran it",
                job=self.row.job,
            )
        return row


class Queue:
    """The ordered jobs of an owner, in the order of the commits that staged them.

    All of them are read: only the rows tell that order, and no key or index does. What is read may
    be out of date by the time a job is claimed: the claim looks again.
    """

    def __init__(self, outbox: str, root: Any, rows: Iterable[Any] | None = None) -> None:
        if rows is None:
            rows = queued_jobs(outbox, root).iter(use_cache=False, use_global_cache=False)
        self._rows = sorted(map(_short, rows), key=lambda row: row.rank)

    def remove(self, row: Any) -> None:
        self._rows = [each for each in self._rows if each is not row]

    def first(self, now: int) -> Any:
        """Return the row of the first job, if it may run now, or None.

        Its arguments may be None. One that was never due yet holds no later one up.
        """
        for row in self._rows:
            if _holds_up(row, now):
                return None
            if row.is_ready(now):
                return row
        return None


def _holds_up(row: Any, now: int) -> bool:
    """Return whether a row of a queue holds up the later ones: it is dead, or has failed."""
    has_begun = row.attempts or row.first_error is not None
    return row.dead is not None or bool(has_begun and not row.is_ready(now))


def _short(row: Any) -> Any:
    """Return a row without long arguments, so that many of them find room."""
    if len(row.arguments or b"") > _SHORT:
        row.arguments = row.data = None
    return row


@dataclasses.dataclass
class Worker:
    """Runs the jobs of an outbox. Thread-safe.

    Attributes:
        within: make the contexts in which each job runs.
    """

    outbox: str
    jobs: Mapping[str, Job[..., Any]]
    waker: Waker
    clock: Clock
    service: LockService | None
    claim_seconds: float
    within: list[Callable[[], contextlib.AbstractContextManager[Any]]] = dataclasses.field(
        default_factory=list
    )

    def run(self, key: Any) -> Outcome:
        """Run the due jobs of an owner, as `Outbox.run` says, in the namespace."""
        few: list[Any] = []
        is_all = False
        if is_ordered(key):
            few, is_all = JobRow.some_below(key.root(), "queued", self.outbox, _FEW)
        row = next((each for each in few if each.key == key), None)
        if row is None and not is_all:
            row = key.get(use_cache=False, use_global_cache=False)
        if row is None or row.dead is not None or row.outbox != self.outbox:
            return Outcome.NOTHING
        now = micros_now(self.clock)
        if any(each.rank < row.rank and _holds_up(each, now) for each in few):
            return Outcome.NOTHING  # without reading all of its owner's
        with batch_scope(self.service, f"job {row.job}") as opened:
            if row.owner is None:
                return self._run_alone(key, row, None)
            try:
                with global_lock(
                    row.owner,
                    wait_timeout=_BUSY_WAITS[row.tries > 0],
                    max_waiting=_MOST_WAITING,
                    heartbeat=not opened.service.requests_only,
                ) as tenure:
                    contended = was_contended(tenure)
                    if row.ordered:
                        is_known = is_all and not contended
                        return self._run_owner(key, tenure, few if is_known else None)
                    return self._run_alone(key, None if contended else row, tenure)
            except _BUSY as error:
                log.debug("job %s of %s waits: %s", row.job, quoted(row.owner), error)
        self._put_off(key)
        return Outcome.BUSY

    def _run_alone(self, key: Any, row: Any, tenure: HeldLock | None) -> Outcome:
        claim = self._claim(key, tenure, row)
        if claim is None:
            return Outcome.NOTHING
        self._run(claim)
        return Outcome.RAN

    def _run_owner(self, until: Any, tenure: HeldLock, rows: list[Any] | None) -> Outcome:
        """Run the jobs until that one, and some later ones that may run now.

        `rows`: the owner's ordered jobs as they were read before the lock; None: not read.
        """
        #: `read`: whether it was read under the lock, and no job has run since.
        ran, read, ends = Outcome.NOTHING, rows is None, math.inf
        queue = Queue(self.outbox, until.root(), rows)
        for _ in range(_MOST_RUNS):
            row = queue.first(micros_now(self.clock))
            if row is None:
                return ran
            if ran is Outcome.RAN:
                tenure = tenure.yield_to_waiters()
            key = row.key
            claim = self._claim(key, tenure, None if row.arguments is None else row)
            if claim is not None:
                ran, read = Outcome.RAN, False
                outcome, job = self._run(claim), self.jobs.get(row.job)
                if outcome != "done" and (outcome != "dead" or (job is not None and job.blocks)):
                    return ran  # it holds up the others
            elif read:
                return ran
            if key == until:
                ends = self.clock.now() + _DRAIN_SECONDS
            if self.clock.now() >= ends:
                return ran
            if claim is None:  # what was read is out of date
                queue, read = Queue(self.outbox, until.root()), True
            else:
                queue.remove(row)
        return ran

    def cancel(self, key: Any) -> bool:
        """Remove a job that no worker runs, in the running transaction; return whether it did."""
        row = latest_of(key)
        now = micros_now(self.clock)
        if row is None or row.outbox != self.outbox or _is_claimed(row, now, locked=False):
            return False
        self._free_name(row, row.name_key)
        key.delete()
        if row.first_error is not None:  # it has failed

            def look() -> None:
                # While the context is open. The locks may be left in an event loop, without one.
                due = next_of(row, self.clock)
                after_commit(lambda: self.waker.wake(due))

            get_context().call_on_commit(look)
        return True

    def _claim(self, key: Any, tenure: HeldLock | None, row: Any = None) -> _Claim | None:
        """Claim a job by compare-and-swap, unless another worker has it, or it was done or put off.

        `row`: as it was read before. If it has changed since, it is read again.

        A transactional job reads its row, and removes it, in its own transaction. At its first time
        it needs no claim: under the lock no other worker runs it, and without one that transaction
        fails. If the process dies, the relay asks for it, and notes that: later runs are counted
        before they begin.
        """
        token = secrets.token_hex(12)
        locked = tenure is not None and not tenure.degraded
        while True:
            if row is None:
                row = key.get(use_cache=False, use_global_cache=False)
            if row is None:
                return None
            job = self.jobs.get(row.job)
            transactional = job is not None and job.transactional
            first = row.name is None and not (row.attempts or row.tries)
            unseen = first and locked and transactional
            if not self._note_claim(row, "" if unseen else token, locked=locked):
                return None
            with contextlib.suppress(errors.StaleWriteError):
                if row.name is not None:
                    ndb.transaction(functools.partial(self._put_and_free, row, row.name_key))
                    return _Claim(row)
                if unseen or swap([row])[0]:
                    return _Claim(row)
            row = None

    def _note_claim(self, row: Any, token: str, *, locked: bool) -> bool:
        now = micros_now(self.clock)
        if row.dead is not None or not row.is_ready(now) or _is_claimed(row, now, locked=locked):
            return False
        row.attempts += 1
        row.tries = 0
        if row.job in self.jobs:
            row.unknown_since = 0
        row.claim, row.claimed_locked = token, locked
        row.claimed_until = now + round(self.claim_seconds * 1e6)
        pause = _RUNNING_PAUSE if locked else self.claim_seconds
        row.look_at(now + round(pause * 1e6))
        return True

    def _put_and_free(self, row: Any, name: Any) -> None:
        """Put a row in a transaction; from then on, a job of the same name may be staged again."""
        self._free_name(row, name)
        row.name = None
        row.put()

    @staticmethod
    def _free_name(row: Any, name: Any) -> None:
        named = None if name is None else latest_of(name)
        if named is not None and named.job_key == row.key:
            name.delete()

    def _run(self, claim: _Claim) -> str:
        row, attempt = claim.row, claim.row.attempts
        began = self.clock.now()
        lag = max(self.clock.wall() - row.ready_at / 1e6, 0.0)
        job = self.jobs.get(row.job)
        if job is not None and attempt > job.retry.attempts:
            outcome, error = self._failed(claim, None)  # its last runs ended with their processes
        else:
            outcome, error = self._run_once(claim)
        if outcome == "done before":
            return "done"
        seconds = self.clock.now() - began
        place = row.key.namespace() or ""
        LISTENERS.emit(JobRan(row.owner, row.job, outcome, attempt, lag, seconds, error, place))
        return outcome

    def _run_once(self, claim: _Claim) -> tuple[str, str]:
        row, job = claim.row, self.jobs.get(claim.row.job)
        try:
            if job is None:
                raise errors.UnknownJob(
                    f"no job {row.job} is registered in this process: it may belong to another "
                    f"version of the app, or its module was not imported",
                    job=row.job,
                )
            told = JobContext(text_of(row.key), row.job, row.owner, row.attempts)
            has_ended = False
            with contextlib.ExitStack() as around:
                for context in self.within:
                    around.enter_context(context())
                around.enter_context(running(told, job.time_limit))
                if job.transactional:
                    ndb.transaction(lambda: self._call_and_remove(job, claim))
                    return "done", ""
                self._call(job, claim)
                transactions.finish_writes()
                has_ended = True
            if not has_ended:
                raise RuntimeError(
                    "a context of Outbox.within has swallowed an error of the job. To fix it: let "
                    "it raise the error again"
                )
        except (Exception, SystemExit) as error:  # a job that exits ends itself, not its worker
            _log_other_writes(row.job)
            if isinstance(error, errors.ClaimLost):
                return "done before" if isinstance(error, _DoneBefore) else "lost", ""
            return self._failed(claim, error)
        return self._remove(claim)

    @staticmethod
    def _call(job: Job[..., Any], claim: _Claim) -> None:
        args, kwargs = decoded(claim.row.arguments)  # each time: the function may change them
        transactions.call_to_end(job.function, *args, **kwargs)

    def _call_and_remove(self, job: Job[..., Any], claim: _Claim) -> None:
        row = look_up(claim.key)  # with the function's own first look-up
        self._call(job, claim)
        claim.check(row())
        claim.key.delete()

    def _remove(self, claim: _Claim) -> tuple[str, str]:
        try:
            self._insist(lambda row: swap([row], delete=True)[0], claim)
        except errors.ClaimLost:
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
                if not is_conflict(error) or micros_now(self.clock) >= until:
                    raise
                self.clock.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, _MOST_PAUSE)
            row = claim.current()

    def _failed(self, claim: _Claim, error: BaseException | None) -> tuple[str, str]:
        job, attempts = self.jobs.get(claim.row.job), claim.row.attempts
        final = job is not None and error is not None and isinstance(error, job.never_retry)
        cause = "the process ended" if error is None else type(error).__name__
        text = cause if error is None else _described(error)

        def note(row: Any) -> bool:
            now = micros_now(self.clock)
            if row.first_error is None:
                row.first_error, row.first_error_at = text, now
            row.attempts = attempts
            row.last_error, row.last_error_at = text, now
            if job is None:
                row.unknown_since = row.unknown_since or now
            row.claim, row.claimed_until, row.claimed_locked = "", 0, False
            pause = None if final else self._pause(row, job, now)
            if pause is not None and isinstance(error, RetryAfter):
                pause = error.seconds
            if pause is None:
                row.die(f"{row.job} {cause}", now)
                if job is None or not job.blocks:
                    row.queued = None
            else:
                row.put_off_until(now + round(pause * 1e6))
                row.ask_again_at(row.ready_at)
            return swap([row])[0]

        try:
            row = self._insist(note, claim)
        except errors.ClaimLost:
            return "lost", text
        if row.dead is not None:
            return "dead", text
        delay = (row.ready_at - micros_now(self.clock)) / 1e6
        self.waker.wake([Due(row.key, row.tier, max(delay, 0.0))])
        return "failed", text

    @staticmethod
    def _pause(row: Any, job: Job[..., Any] | None, now: int) -> float | None:
        """Return the pause before the next attempt, and set its tier; None: there is none."""
        if job is None:
            row.attempts -= 1
            since = (now - row.unknown_since) / 1e6
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
            now = micros_now(self.clock)
            running = bool(row.claim) and row.claimed_until > now
            first, most = _BUSY_PAUSES
            pause = _RUNNING_PAUSE if running else min(first * 2.0 ** min(row.tries, 9), most)
            pause *= random.uniform(0.5, 1)
            row.ask_again_at(now + round(pause * 1e6))
            row.put()
            return None if running else row, pause

        row, pause = ndb.transaction(put_off)
        if row is not None:
            self.waker.wake([Due(row.key, row.tier, pause)])


def next_of(gone: Any, clock: Clock) -> list[Due]:
    """Return a job that a deleted one held up: their own messages had no effect. One runs all.

    Looks at few, once the deletion is committed. Never raises: the relay asks as well, but later.
    """
    if gone is None or gone.queued is None:
        return []
    try:
        few, _ = JobRow.some_below(gone.key.root(), "queued", gone.outbox, _FEW)
        now = micros_now(clock)
        ready = [row for row in few if row.dead is None and row.is_ready(now)]
        return [Due(row.key, row.tier) for row in ready[:1]]
    except Exception:
        log.warning("jobs of %s wait for the relay", quoted(gone.owner), exc_info=True)
        return []


def batch_scope(service: LockService | None, request: str) -> Any:
    """Open a batch scope: with that service, that of the scope around it, or the configured one."""
    outer, settings = current_scope(), None
    if outer is not None:
        service, settings = service or outer.service, outer.settings
    return scope(service, settings=settings, priority=Priority.BATCH, request=request)


def _is_claimed(row: Any, now: int, *, locked: bool) -> bool:
    """Return whether another worker may be running it: it had no lock, or this one has none."""
    return bool(row.claim) and row.claimed_until > now and not (locked and row.claimed_locked)


def _is_mine(row: Any, claim: _Claim) -> bool:
    is_run = not claim.token and row.attempts + 1 != claim.row.attempts
    return bool(row.claim == claim.token) and not is_run


def _log_other_writes(name: str) -> None:
    """Wait for the writes of a failed job, and log the errors of those whose futures it dropped:
    a later job of the same run would get them."""
    for _ in range(_MOST_ERRORS):  # each call raises one, once
        try:
            transactions.finish_writes()
            break
        except Exception:
            log.exception("a write of the failed job %s has failed as well", name)


def _described(error: BaseException) -> str:
    """Return an error and its last call site, for people, in one line that a row can hold."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # a `__str__` that raises
        text = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return legible(text, MOST_ERROR - 300) + legible(place[-300:], 300)
