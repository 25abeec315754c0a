"""Dead letters: jobs that have used up their attempts. Listed, shown, redriven, purged.

The index of `dead` begins with the job's name and the class of its last error
(the cause), so one cause is one part of it. A redriven job leaves that part: so a
redrive that was ended midway is resumed by another one, and none runs twice.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.clock import Clock
from userlock.lock.api import global_lock
from userlock.lock.lease import Priority
from userlock.lock.scope import default_service, scope
from userlock.lock.service import LockService
from userlock.outbox.arguments import decode
from userlock.outbox.rows import JobRow
from userlock.outbox.waking import Due, Waker, text_of

_BATCH = 100


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
            cause: the beginning of the cause: a job's name, or that and the class of the error.
            most: how many at most.
        """
        return [letter_of(row) for row in self._query(cause).fetch(most, use_cache=False)]

    def count(self, cause: str = "", *, most: int = 100_000) -> int:
        """Return how many there are, counted up to `most`."""
        counted: int = self._query(cause).count(most)
        return counted

    def redrive(self, key: Any) -> bool:
        """Let a dead job run again, with all its attempts. Returns False if it is not dead.

        Raises:
            LockTimeout: its owner is busy.
        """
        row = key.get(use_cache=False)
        if row is None or row.dead is None:
            return False
        owner = row.owner

        def revive() -> Any:
            row = key.get()
            if row is None or row.dead is None:
                return None
            row.dead, row.died_at, row.queued = None, 0, row.ordered or None
            row.attempts, row.wakes = 0, row.wakes + 1
            row.redriven += 1
            row.ready_at = round(self._clock.wall() * 1e6)
            row.look_at(row.ready_at)
            row.put()
            return row

        service = self._service or default_service()
        with (
            scope(service, priority=Priority.BATCH, request=f"redrive {row.job}"),
            global_lock(owner),
        ):
            row = ndb.transaction(revive)
        if row is None:
            return False
        # Another name than before: its first messages may not be forgotten yet.
        self._waker.wake([Due(row.key, row.tier, row.redriven * 1000, row.wakes)])
        return True

    def redrive_all(
        self, cause: str, *, rate: float = 50.0, stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[str, bool]]:
        """Redrive all of one cause; yield the key and the outcome of each.

        May be ended anywhere, and begun again.

        Args:
            cause: as in `list`; empty: all dead letters.
            rate: how many a second at most.
            stopped: asked before each one.

        Raises:
            ValueError: the rate is not above 0.
        """
        if not rate > 0:
            raise ValueError(f"the rate must be above 0, not {rate!r}")
        pause = 1 / rate
        following = self._clock.now()
        for key in self._each(cause):
            if stopped():
                return
            self._clock.sleep(max(following - self._clock.now(), 0.0))
            following = max(following, self._clock.now()) + pause
            yield text_of(key), self.redrive(key)

    def purge(self, cause: str = "") -> Iterator[str]:
        """Delete dead letters for good; yield the key of each. A redriven one stays."""

        def delete(key: Any) -> bool:
            row = key.get()
            if row is None or row.dead is None:
                return False
            key.delete()
            return True

        for key in self._each(cause):
            if ndb.transaction(lambda key=key: delete(key)):
                yield text_of(key)

    def _query(self, cause: str) -> Any:
        query = JobRow.query(JobRow.dead >= cause, namespace="")
        if cause:
            query = query.filter(JobRow.dead < cause + "\U0010ffff")
        return query.order(JobRow.dead, JobRow.key)

    def _each(self, cause: str) -> Iterator[Any]:
        """Yield the keys, from the first to the last, each once."""
        cursor, more = None, True
        while more:
            keys, cursor, more = self._query(cause).fetch_page(
                _BATCH, start_cursor=cursor, keys_only=True
            )
            yield from keys


def when(seconds: float) -> str:
    """Return a time for people; empty for none."""
    if not seconds:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
