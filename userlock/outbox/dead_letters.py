"""Dead letters: jobs that have used up their attempts. Listed, shown, redriven, purged.

The index of `dead` begins with the job's name and the class of its last error
(the cause), so one cause is one part of it. A redriven job leaves that part: so a
redrive that was ended midway is resumed by another one, and none runs twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.clock import Clock
from userlock.errors import LockTimeout
from userlock.lock.api import global_lock
from userlock.lock.service import LockService
from userlock.outbox.arguments import decode
from userlock.outbox.rows import dead_jobs
from userlock.outbox.waking import Due, Waker, text_of
from userlock.outbox.worker import batch_scope

_BATCH = 100
#: A redrive that is stopped ends within this time. In seconds.
_NAP_SECONDS = 0.2


class Letter(NamedTuple):
    """A row, for people and programs. Times are in seconds since 1970."""

    key: str
    owner: str
    job: str
    arguments: bytes
    tier: str
    attempts: int
    redriven: int
    staged_at: float
    ready_at: float
    cause: str
    died_at: float
    first_error: str
    first_error_at: float
    last_error: str
    last_error_at: float
    running: bool
    #: Whether, dead, it holds up its owner's later jobs.
    blocks: bool
    #: Another one after each write of the row.
    stamp: int
    #: Its place among its owner's jobs.
    rank: tuple[int, int]

    @property
    def dead(self) -> bool:
        """Return whether it is a dead letter."""
        return bool(self.cause)

    @property
    def call(self) -> str:
        """Return the call, as it would be written."""
        try:
            args, kwargs = decode(self.arguments)
        except ValueError:
            return f"{self.job}(…)"
        parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        return f"{self.job}({', '.join(parts)})"


def letter_of(row: Any) -> Letter:
    """Return a row as a letter."""
    return Letter(
        text_of(row.key),
        row.owner,
        row.job,
        row.arguments or b"",
        row.tier,
        row.attempts,
        row.redriven,
        row.staged_at / 1e6,
        row.ready_at / 1e6,
        row.dead or "",
        row.died_at / 1e6,
        row.first_error or "",
        row.first_error_at / 1e6,
        row.last_error or "",
        row.last_error_at / 1e6,
        bool(row.claim),
        row.dead is not None and bool(row.queued),
        row.write_id or 0,
        row.rank,
    )


class DeadLetters:
    """The dead letters of an outbox. Its functions run in an ndb context.

    Args:
        waker: the engines, for redriven ones.
        clock: for the rate.
        service: the source of locks; None for the configured one.
    """

    def __init__(self, waker: Waker, clock: Clock, service: LockService | None) -> None:
        self._waker = waker
        self._clock = clock
        self._service = service

    def list(self, cause: str = "", *, most: int = 100) -> list[Letter]:
        """Return dead letters, ordered by cause.

        Args:
            cause: a job's name, or that and the class of the error, as in `Letter.cause`.
            most: how many at most.
        """
        return [letter_of(row) for row in dead_jobs(cause).fetch(most, use_cache=False)]

    def count(self, cause: str = "", *, most: int = 100_000) -> int:
        """Return how many there are, counted up to `most`."""
        counted: int = dead_jobs(cause).count(most)
        return counted

    def redrive(
        self,
        key: Any,
        *,
        wait_timeout: float | None = None,
        stamp: int | None = None,
        died_by: float = math.inf,
    ) -> bool:
        """Let a dead job run again, with all its attempts. Returns False if it is not dead.

        Args:
            key: of its row.
            wait_timeout: the longest wait for a busy owner; by default that of batch work.
            stamp: only as it is in that letter. None: whatever has happened to it.
            died_by: only if it has died by then, in seconds since 1970.

        Raises:
            LockTimeout: its owner is busy.
        """
        row = key.get(use_cache=False, use_global_cache=False)
        if not _is_meant(row, stamp, died_by):
            return False
        owner = row.owner

        def revive() -> Any:
            row = key.get()
            if not _is_meant(row, stamp, died_by):
                return None
            row.dead, row.died_at, row.queued = None, 0, row.ordered or None
            row.attempts = row.tries = 0
            row.wakes += 1
            row.redriven += 1
            row.ready_at = round(self._clock.wall() * 1e6)
            row.look_at(row.ready_at)
            row.put()
            return row

        with (
            batch_scope(self._service, f"redrive {row.job}"),
            global_lock(owner, wait_timeout=wait_timeout),
        ):
            row = ndb.transaction(revive)
        if row is None:
            return False
        # Another name than before: its first messages may not be forgotten yet.
        self._waker.wake([Due(row.key, row.tier, row.attempts, row.wakes)])
        return True

    def redrive_all(
        self,
        cause: str,
        *,
        rate: float = 50.0,
        stopped: Callable[[], bool] = lambda: False,
        busy_seconds: float = 2.0,
    ) -> Iterator[tuple[str, bool]]:
        """Redrive all of one cause; yield the key of each, and whether it was redriven.

        Not redriven are those whose owners are busy, and those that others have redriven
        meanwhile. One that dies again is left for the next time. May be ended
        anywhere, and begun again.

        Args:
            cause: as in `list`; empty: all dead letters.
            rate: how many a second at most.
            stopped: asked before each one, and in pauses.
            busy_seconds: the longest wait for one owner.

        Raises:
            ValueError: the rate is not above 0.
        """
        if not rate > 0:
            raise ValueError(f"the rate must be above 0, not {rate!r}")
        pause = 1 / rate
        died_by = self._clock.wall()
        following = self._clock.now()
        for key in self._each(cause):
            while not stopped() and (left := following - self._clock.now()) > 0:
                self._clock.sleep(min(left, _NAP_SECONDS))
            if stopped():
                return
            following = max(following, self._clock.now()) + pause
            try:
                redriven = self.redrive(key, wait_timeout=busy_seconds, died_by=died_by)
            except LockTimeout:
                redriven = False
            yield text_of(key), redriven

    def delete(self, key: Any, *, stamp: int | None = None, died_by: float = math.inf) -> bool:
        """Delete a dead letter for good. Returns False if it is not dead. Options: as `redrive`."""

        def delete() -> bool:
            if not _is_meant(key.get(), stamp, died_by):
                return False
            key.delete()
            return True

        deleted: bool = ndb.transaction(delete)
        return deleted

    def purge(self, cause: str = "", *, died_by: float | None = None) -> Iterator[str]:
        """Delete dead letters for good; yield the key of each. A redriven one stays.

        Args:
            cause: as in `list`; empty: all.
            died_by: only those that had died by then, in seconds since 1970; by default by now.
        """
        died_by = self._clock.wall() if died_by is None else died_by
        for key in self._each(cause):
            if self.delete(key, died_by=died_by):
                yield text_of(key)

    def _each(self, cause: str) -> Iterator[Any]:
        """Yield the keys, from the first to the last, each once."""
        cursor, more = None, True
        while more:
            keys, cursor, more = dead_jobs(cause).fetch_page(
                _BATCH, start_cursor=cursor, keys_only=True
            )
            yield from keys


def _is_meant(row: Any, stamp: int | None, died_by: float) -> bool:
    """Return whether a row is still the dead letter that a caller has seen."""
    return (
        row is not None
        and row.dead is not None
        and stamp in (None, row.write_id)
        and row.died_at <= died_by * 1e6 + 1  # rounded
    )
