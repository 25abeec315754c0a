"""Dead letters: jobs that have used up their attempts. Listed, shown, redriven, purged.

The index of `dead` begins with the job's name and the class of its last error (the cause). A
redriven job leaves it, so a redrive that was ended midway is resumed by another one, and none runs
twice. A redrive of many goes in batches, of one owner or several: their locks, one transaction, the
messages. The transaction reads each row again and decides:

    redrive A              rows           redrive B, or the worker
    read keys ───────────▶ dead
                           redriven ◀──── redrive B
                           runs, dies ◀── worker
    commit of a batch ───▶ it died after A began: A leaves it

A process that ends between the commit and the messages loses none: the rows are due at once, so the
relay's next round asks for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.arguments import check_count, check_number, check_seconds
from userlock.clock import Clock
from userlock.errors import CommitInDoubt, LockTimeout
from userlock.lock.api import global_lock
from userlock.lock.service import LockService
from userlock.ndb.commits import MAX_GROUPS
from userlock.ndb.owners import micros_now, namespaces, owner_of
from userlock.ndb.transactions import is_conflict
from userlock.outbox.rows import OF_ROW, JobRow, dead_jobs, decoded, flaw_of, own_job_key, report
from userlock.outbox.waking import Due, Waker, text_of
from userlock.outbox.worker import batch_scope, next_of

log = logging.getLogger(__name__)

#: The keys that are read at once.
_BATCH = 300
#: The most jobs of a batch: each may be of another owner, and so of another entity group.
_MOST_TOGETHER = MAX_GROUPS
#: A batch has no more than the rate allows in this time, in seconds.
_TOGETHER_SECONDS = 0.1
#: A batch takes less. When a redrive is killed, its owners are busy for so long. In seconds.
_LOCK_SECONDS = 10.0
#: For the messages of a batch, in seconds.
_WAKE_SECONDS = 2.0
#: The lowest rate of a redrive, in jobs a second.
_LEAST_RATE = 1e-6
#: A redrive that is stopped ends within this time. In seconds.
_NAP_SECONDS = 0.2


class Letter(NamedTuple):
    """A row, for people and programs. Times are in seconds since 1970."""

    key: str
    outbox: str
    namespace: str
    owner: str  # empty: it has none
    job: str
    arguments: bytes
    tier: str
    attempts: int
    redriven: int
    staged_at: float
    ready_at: float
    delayed: bool
    cause: str
    died_at: float
    first_error: str
    first_error_at: float
    last_error: str
    last_error_at: float
    running: bool
    blocks: bool  # whether, dead, it holds up its owner's later jobs
    stamp: int  # another one after each write of the row
    rank: tuple[int, int]  # its place among its owner's jobs
    flaw: str  # what is malformed in its row, and the rest then not known; empty if it is whole

    @property
    def dead(self) -> bool:
        """Return whether it is a dead letter."""
        return bool(self.cause)

    @property
    def call(self) -> str:
        """Return the call, as it would be written."""
        try:
            args, kwargs = decoded(self.arguments)
        except ValueError:
            return f"{self.job}(…)"
        parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        return f"{self.job}({', '.join(parts)})"


def letter_of(row: Any) -> Letter:
    """Return a row for people; of a malformed one what its key and its indexes tell."""
    flaw = flaw_of(row)
    if flaw:
        seen = {name: getattr(row, name) for name in ("key", "write_id", "due", "queued", "dead")}
        outbox = (row.dead or row.due or "").partition("|")[0]
        known = {"outbox": outbox, "owner": owner_of(row.key.root()), "job": "(malformed)"}
        row = JobRow(**seen, **known, ready_at=0, staged_at=0)
    same = ("outbox", "job", "tier", "attempts", "redriven", "cause", "rank")
    times = ("staged_at", "ready_at", "died_at", "first_error_at", "last_error_at")
    return Letter(
        key=text_of(row.key),
        namespace=row.key.namespace() or "",
        owner=row.owner or "",
        arguments=row.arguments or b"",
        delayed=bool(row.delayed),
        first_error=row.first_error or "",
        last_error=row.last_error or "",
        running=bool(row.claim),
        blocks=row.dead is not None and row.queued is not None,
        stamp=row.write_id or 0,
        flaw=flaw,
        **{name: getattr(row, name) for name in same},
        **{name: getattr(row, name) / 1e6 for name in times},
    )


@dataclasses.dataclass
class DeadLetters:
    """The dead letters of an outbox. Its functions run in an ndb context of its database."""

    _outbox: str
    _waker: Waker
    _clock: Clock
    _service: LockService | None

    def list(self, cause: str = "", *, most: int = 100) -> list[Letter]:
        """Return dead letters, at most so many, ordered by cause.

        `cause`: a job's name, or that and the class of the error, as in `Letter.cause`.
        """
        most = check_count("most", most, least=0)
        rows = itertools.chain.from_iterable(
            dead_jobs(self._outbox, namespace, cause).iter(limit=most, use_cache=False)
            for namespace in namespaces()
        )
        return list(map(letter_of, itertools.islice(rows, most)))

    def count(self, cause: str = "", *, most: int = 100_000) -> int:
        """Return how many there are, counted up to `most`."""
        most = check_count("most", most, least=0)
        queries = (dead_jobs(self._outbox, namespace, cause) for namespace in namespaces())
        found: int = sum(query.count(most) for query in queries)
        return min(found, most)

    def redrive(
        self,
        key: str,
        *,
        wait_timeout: float | None = None,
        stamp: int | None = None,
        died_by: float = math.inf,
    ) -> bool:
        """Let a dead job run again, with all its attempts; return False if it is not dead.

        Args:
            key: its id, as `Letter.key`.
            wait_timeout: the longest wait for a busy owner, before LockTimeout; by default that of
                batch work.
            stamp: only as it is in that letter. None: whatever has happened to it.
            died_by: only if it has died by then, in seconds since 1970.
        """
        meant = own_job_key(key)
        row = meant.get(use_cache=False, use_global_cache=False)
        if not self._is_meant(row, stamp, died_by):
            return False
        with batch_scope(self._service, f"redrive {row.job}"), _lock(row.owner, wait_timeout):
            rows = ndb.transaction(lambda: self._revive([meant], stamp, died_by))
        self._wake(rows)
        return bool(rows)

    def redrive_all(
        self,
        cause: str,
        *,
        rate: float = 50.0,
        stopped: Callable[[], bool] = lambda: False,
        busy_seconds: float = 2.0,
        most: int | None = None,
    ) -> Iterator[tuple[str, bool]]:
        """Redrive all of one cause; yield the key of each, and whether it was redriven.

        Not redriven are those whose owners are busy (they are tried once more at the end), those
        that others have redriven meanwhile, and those whose rows are malformed, which the log
        names. A job that dies again is left for the next time. Those of a batch, at most 25 and
        what `rate` allows in 0.1 s, are redriven before the first is yielded. May be ended
        anywhere, and begun again.

        Args:
            cause: as in `list`; empty: all dead letters.
            rate: how many a second at most, on average. Above 0.
            stopped: asked before each batch, and in pauses.
            busy_seconds: the longest wait for one owner.
            most: how many at most; None: all.
        """
        check_number("rate", rate, least=_LEAST_RATE, most=math.inf, unit="jobs a second")
        check_seconds("busy_seconds", busy_seconds, least=0, most=86_400)
        most = None if most is None else check_count("most", most, least=0)
        died_by = self._clock.wall()
        number = max(1, int(min(rate * _TOGETHER_SECONDS, _MOST_TOGETHER)))
        pace = _Pace(self._clock, rate, stopped)
        busy: dict[Any, list[Any]] = {}
        for keys in _batches(itertools.islice(self._each(cause), most), number):
            if not pace.wait(len(keys)):
                return
            redriven, waiting = self._redrive_batch(keys, 0, died_by)
            for key in waiting:
                busy.setdefault(key.root(), []).append(key)
            for key in keys:
                if key not in waiting:
                    yield text_of(key), key in redriven
        for keys_of_owner in busy.values():
            wait_timeout = busy_seconds
            for keys in _batches(keys_of_owner, number):
                if not pace.wait(len(keys)):
                    return
                redriven, waiting = self._redrive_batch(keys, wait_timeout, died_by)
                wait_timeout = 0 if waiting else busy_seconds
                for key in keys:
                    yield text_of(key), key in redriven

    def _redrive_batch(
        self, keys: Sequence[Any], wait_timeout: float, died_by: float
    ) -> tuple[set[Any], set[Any]]:
        """Redrive jobs together; each alone if that fails, as a row is malformed, or in conflict.

        Returns the keys of those redriven, and of busy owners.
        """
        busy: set[Any] = set()
        # Not again together: all these owners would wait for its pauses.
        retries = 0 if len(keys) > 1 else 3
        scope = batch_scope(self._service, "redrive of dead jobs")
        try:
            with scope, contextlib.ExitStack() as locks:
                for _, group in itertools.groupby(keys, key=lambda key: key.root()):
                    owned = list(group)
                    try:
                        locks.enter_context(_lock(_owner_of(owned[0]), wait_timeout))
                    except LockTimeout:
                        busy.update(owned)
                free = [key for key in keys if key not in busy]
                rows = ndb.transaction(lambda: self._revive(free, None, died_by), retries=retries)
        except CommitInDoubt:
            raise
        except Exception as error:
            if len(keys) > 1:
                log.debug("a batch is redriven one by one: %s", type(error).__name__)
                alone = [self._redrive_batch([key], wait_timeout, died_by) for key in keys]
                redriven, waiting = zip(*alone, strict=True)
                return set().union(*redriven), set().union(*waiting)
            if is_conflict(error):
                return set(), set(keys)
            if not isinstance(error, OF_ROW):
                raise
            report(keys[0], "redriven", type(error).__name__)
            return set(), set()
        self._wake(rows)
        return {row.key for row in rows}, busy

    def _revive(self, keys: Sequence[Any], stamp: int | None, died_by: float) -> Sequence[Any]:
        """Let those run again that are still as they are meant; return them."""
        revived = []
        for row in ndb.get_multi(keys, use_cache=False):
            if not self._is_meant(row, stamp, died_by):
                continue
            if flaw_of(row):
                raise ValueError("the row is malformed")
            row.dead, row.died_at = None, 0
            row.enqueue()
            row.attempts = row.tries = row.unknown_since = 0
            row.redriven += 1
            row.ready_at, row.delayed = micros_now(self._clock), False
            row.look_when_ready()
            row.put(use_cache=False)  # the caller's context would keep them all
            revived.append(row)
        return revived

    def _wake(self, rows: Sequence[Any]) -> None:
        self._waker.wake((Due(row.key, row.tier) for row in rows), timeout=_WAKE_SECONDS)

    def delete(self, key: str, *, stamp: int | None = None, died_by: float = math.inf) -> bool:
        """Delete a dead letter for good; return False if it is not dead. Options: as `redrive`.

        If it held up its owner's later jobs, they go on.
        """
        row = self._delete(own_job_key(key), stamp, died_by)
        self._waker.wake(next_of(row, self._clock))
        return row is not None

    def purge(self, cause: str = "", *, died_by: float | None = None) -> Iterator[str]:
        """Delete dead letters of a cause for good, or all; yield the key of each.

        Only those that had died by then, in seconds since 1970; by default by now. A redriven one
        stays, one in conflict with others, and one whose row is malformed, which the log names.
        """
        died_by = self._clock.wall() if died_by is None else died_by
        check_number("died_by", died_by, least=-math.inf, most=math.inf, unit="seconds")
        for _, keys in itertools.groupby(self._each(cause), key=lambda key: key.root()):
            blocker = None
            try:
                for key in keys:
                    try:
                        row = self._delete(key, None, died_by)
                    except Exception as error:
                        if is_conflict(error):
                            continue  # it is left
                        if not isinstance(error, OF_ROW):
                            raise
                        report(key, "purged", type(error).__name__)
                        continue
                    if row is not None:
                        blocker = row if row.queued is not None else blocker
                        yield text_of(key)
            finally:  # the caller may have had enough
                self._waker.wake(next_of(blocker, self._clock))

    def _delete(self, key: Any, stamp: int | None, died_by: float) -> Any:
        """Delete a dead letter; return its row, or None if it is not the one that is meant."""

        def delete() -> Any:
            row = key.get(use_cache=False)
            if not self._is_meant(row, stamp, died_by):
                return None
            key.delete(use_cache=False)
            return row

        return ndb.transaction(delete)

    def _is_meant(self, row: Any, stamp: int | None, died_by: float) -> bool:
        """Return whether a row is still the dead letter that a caller has seen."""
        return (
            row is not None
            and row.outbox == self._outbox
            and row.dead is not None
            and stamp in (None, row.write_id)
            and row.died_at <= died_by * 1e6 + 1  # rounded
        )

    def _each(self, cause: str) -> Iterator[Any]:
        for namespace in namespaces():
            query = dead_jobs(self._outbox, namespace, cause)
            cursor, more = None, True
            while more:
                keys, cursor, more = query.fetch_page(_BATCH, start_cursor=cursor, keys_only=True)
                yield from keys


class _Pace:
    """Keeps work to a rate, so many a second, until it is stopped."""

    def __init__(self, clock: Clock, rate: float, stopped: Callable[[], bool]) -> None:
        self._clock = clock
        self._rate = rate
        self._stopped = stopped
        self._following = clock.now()

    def wait(self, number: int) -> bool:
        """Wait until so many may be done; return False if the work is to stop."""
        while not self._stopped() and (left := self._following - self._clock.now()) > 0:
            self._clock.sleep(min(left, _NAP_SECONDS))
        self._following = max(self._following, self._clock.now()) + number / self._rate
        return not self._stopped()


def _owner_of(key: Any) -> str | None:
    owner = owner_of(key.root())
    if owner is None:  # only the rows tell
        row = key.get(use_cache=False, use_global_cache=False)
        owner = None if row is None else row.owner
    return owner


def _lock(owner: str | None, wait_timeout: float | None) -> contextlib.AbstractContextManager[Any]:
    if owner is None:
        return contextlib.nullcontext()
    return global_lock(owner, wait_timeout=wait_timeout, lock_timeout=_LOCK_SECONDS)


def _batches(keys: Iterable[Any], number: int) -> Iterator[list[Any]]:
    keys = iter(keys)
    while some := list(itertools.islice(keys, number)):
        yield some
