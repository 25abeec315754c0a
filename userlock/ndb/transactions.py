"""Locks and writes that are under way: what happens when a lock is left.

Two rules. Writes begun under a lock land before it is released. And a lock
that is left inside a transaction is kept until the transaction is over:

    A                                   B
    begin transaction
    lock, get, put (buffered), leave
                                        lock, get  ◀── would read what A is
    commit                                             about to change
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from userlock.lock.tenure import Tenure
from userlock.ndb import hooks

log = logging.getLogger(__name__)

_TIDY_AT = 64


class PendingWrite:
    """A put whose outcome is not known yet."""

    __slots__ = ("_begun_in", "_error", "future")

    def __init__(self, future: Any) -> None:
        self.future = future
        self._begun_in = hooks.current_context()
        self._error = hooks.unobserved(future)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to wait for or to report."""
        return self.future.done() and self._error() is None

    def finish(self) -> BaseException | None:
        """Wait for it. Gives its error, unless somebody has asked for that already."""
        self.wait()
        return self._error()

    def wait(self) -> None:
        """Wait for it, on the event loop that it was begun on."""
        hooks.wait_for(self.future, self._begun_in)


class DatastoreParticipant:
    """The model layer's say when locks are left. Implements `lock.tenure.Participant`."""

    def leaving(self, tenure: Tenure) -> None:
        """Wait for the writes that were begun under the lock.

        Raises:
            Exception: the first error of a write that nobody has asked for (a `put_async`
                whose future was dropped); others are logged.
        """
        errors = []
        while pending := _pending(tenure):
            # What finishes may begin another write: a hook, or a tasklet.
            write = pending.pop(0)
            if (error := write.finish()) is not None:
                errors.append(error)
        for error in errors[1:]:
            log.error("another write under lock %r failed", tenure.lock_id, exc_info=error)
        if errors:
            raise errors[0]

    def holds(self, tenure: Tenure) -> bool:
        """Inside a transaction the lock stays until it is over."""
        return hooks.in_transaction()

    def postpone(self, tenure: Tenure, release: Callable[[], None]) -> None:
        """Inside a transaction: release when this attempt of it is over."""

        def release_quietly() -> None:
            try:
                release()
            except Exception:
                # Raised here, a transient error would make ndb run the whole
                # transaction again, after it has been committed.
                log.exception("releasing lock %r after its transaction failed", tenure.lock_id)

        hooks.when_transaction_ends(release_quietly)


def _pending(tenure: Tenure) -> list[PendingWrite]:
    pending: list[PendingWrite] = tenure.notes.setdefault("pending", [])  # type: ignore[assignment]
    return pending


def wait_for_writes(tenure: Tenure) -> None:
    """Wait for the writes that were begun under the lock. Their errors are told on leaving it."""
    for write in tuple(_pending(tenure)):
        write.wait()


def note_pending(tenure: Tenure, future: Any) -> None:
    """Remember a write that was begun under the lock, until the lock is left."""
    pending = _pending(tenure)
    if len(pending) >= tenure.notes.get("tidy at", _TIDY_AT):  # type: ignore[operator]
        # A long tenure with many puts keeps only what is still of interest.
        pending[:] = [write for write in pending if not write.settled]
        tenure.notes["tidy at"] = max(_TIDY_AT, 2 * len(pending))
    pending.append(PendingWrite(future))
