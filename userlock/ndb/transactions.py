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
from typing import Any, Protocol

from userlock.lock.tenure import Tenure
from userlock.ndb import hooks

log = logging.getLogger(__name__)

_TIDY_AT = 64


class DatastoreParticipant:
    """The model layer's say when locks are left. Implements `lock.tenure.Participant`."""

    def leaving(self, tenure: Tenure) -> None:
        """Wait for the writes that were begun under the lock.

        Raises:
            Exception: the first error of a write that nobody has asked for (a `put_async`
                whose future was dropped); others are logged.
        """
        errors: list[BaseException] = []
        while pending := _pending(tenure):
            # What finishes may begin another write: a hook, or a tasklet.
            write = pending.pop(0)
            hooks.wait_for(write.future, write.begun_in, write.begun_by)
            if not write.future.done():
                log.warning(
                    "lock %r is left before a write under it has landed: another thread has begun "
                    "it and does not finish it",
                    tenure.lock_id,
                )
                continue
            error = hooks.untold_error(write.future) or write.not_fenced()
            if error is not None:
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


class PendingWrite(Protocol):
    """A write whose outcome is not known yet.

    Attributes:
        future: its outcome to be.
        begun_in: the ndb context that it was begun in.
        begun_by: the thread.
        carried: whether the hooks have seen to it.
    """

    carried: bool
    future: Any
    begun_in: Any
    begun_by: int

    def not_fenced(self) -> BaseException | None:
        """What is to be raised where it went past the hooks; None where it did not."""
        ...


def _pending(tenure: Tenure) -> list[PendingWrite]:
    notes: dict[str, Any] = tenure.notes
    pending: list[PendingWrite] | None = notes.get("pending")
    if pending is None:
        pending = notes["pending"] = []
    return pending


def wait_for_writes(tenure: Tenure) -> None:
    """Wait for the writes that were begun under the lock. Their errors are told on leaving it."""
    for write in tuple(_pending(tenure)):
        hooks.wait_for(write.future, write.begun_in, write.begun_by)


def note_pending(tenure: Tenure, write: PendingWrite) -> None:
    """Remember a write that was begun under the lock, until the lock is left."""
    pending = _pending(tenure)
    if len(pending) >= tenure.notes.get("tidy at", _TIDY_AT):  # type: ignore[operator]
        # A long tenure with many puts keeps only what is still of interest.
        pending[:] = [each for each in pending if not _is_settled(each)]
        tenure.notes["tidy at"] = max(_TIDY_AT, 2 * len(pending))
    hooks.observe(write.future)
    pending.append(write)


def forget_pending(tenure: Tenure, write: PendingWrite) -> None:
    """Its outcome has been told. Forgotten at once where that is easy, as mostly."""
    pending = _pending(tenure)
    if pending and pending[-1] is write:
        pending.pop()


def _is_settled(write: PendingWrite) -> bool:
    """Whether nothing is left to wait for or to tell."""
    if not write.future.done() or hooks.untold_error(write.future) is not None:
        return False
    return write.carried or hooks.has_failed(write.future)
