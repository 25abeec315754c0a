"""Writes that are under way, locks that are left, and transactions.

Writes begun under a lock land before it is released. A lock that is left inside
a transaction is kept until the transaction is over:

    A                                   B
    begin transaction
    lock, get, put (buffered), leave
                                        lock, get  ◀── would read what A is
    commit                                             about to change
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from google.api_core.exceptions import Aborted, RetryError
from google.cloud.ndb import tasklets
from google.cloud.ndb.exceptions import NestedRetryException

from userlock.errors import UserLockError
from userlock.ids import quoted
from userlock.lock.held_lock import HeldLock, notes_of
from userlock.lock.scope import current as current_scope_variable
from userlock.lock.scope import current_scope
from userlock.ndb.context import (
    Attempt,
    current_attempt,
    current_context,
    current_transaction,
    in_flight,
    request_notes,
)

log = logging.getLogger(__name__)

#: In seconds. A write that has not landed by then is fenced all the same.
_PATIENCE_WITH_THREADS = 5.0


# --- pending writes -------------------------------------------------------------------------


class PendingWrite:
    """A write, or an operation that writes, until it has landed or its error is reported.

    The error of a `put_async` whose future is dropped would vanish. An error that the caller
    has seen must not be raised a second time.
    """

    _numbers = itertools.count(1)

    def __init__(self, context: Any) -> None:
        self.number = next(self._numbers)
        #: Its outcome; None when nobody has to learn of it any more.
        self.future: Any = None
        self.begun_in = context
        self.begun_by = threading.get_ident()
        self._pending_in: list[dict[int, PendingWrite]] = []

    def remember(self, future: Any, tenures: Iterable[HeldLock]) -> None:
        """Remember it in the locks that it is begun under; without one, in the request."""
        self.future = future
        self._pending_in = [_pending(tenure) for tenure in tenures]
        if not self._pending_in and self.begun_in.transaction is None:
            self._pending_in = [request_notes().pending]
        for pending in self._pending_in:
            pending[self.number] = self
        _observe(future, self.forget)

    def forget(self) -> None:
        """Let go of the future. Each would keep the other."""
        for pending in self._pending_in:
            pending.pop(self.number, None)
        future, self.future = self.future, None
        if future is not None:
            future._userlock_when_reported = None

    @property
    def unreported(self) -> BaseException | None:
        """Return its error, as long as nobody has asked for it."""
        return None if self.future is None else error_of(self.future)


def _pending(tenure: HeldLock) -> dict[int, PendingWrite]:
    return notes_of(tenure).setdefault("pending", {})  # type: ignore[return-value]


def error_of(future: Any) -> BaseException | None:
    """Return the error that a future has ended with, without reporting it."""
    if not future.done():
        return None
    error: BaseException | None = tasklets.Future.exception(future)
    return error


def _observe(future: Any, when_reported: Callable[[], None]) -> None:
    """Call a function once, as soon as anybody asks for the future's error."""
    kind: Any = type(future)
    if not hasattr(kind, "_userlock_when_reported"):
        future.__class__ = _observed_kind(kind)
    future._userlock_when_reported = when_reported


@functools.cache
def _observed_kind(kind: Any) -> Any:
    class Observed(kind):
        _userlock_when_reported: Any = None

        def check_success(self) -> None:
            try:
                super().check_success()  # waits for it
            except BaseException:
                self._userlock_report()
                raise

        def exception(self) -> Any:
            error = super().exception()
            if error is not None:
                self._userlock_report()
            return error

        get_exception = exception

        def _userlock_report(self) -> None:
            reported, self._userlock_when_reported = self._userlock_when_reported, None
            if reported is not None:
                reported()

    Observed.__name__ = kind.__name__
    return Observed


class _Operation(PendingWrite):
    """An asynchronous operation that writes, until it is over.

    ndb's tasklet asks for the errors of the operation's writes. So only the operation's own
    future tells whether the application has seen them.
    """

    def __init__(self, future: Any, context: Any, tenures: Iterable[HeldLock]) -> None:
        super().__init__(context)
        self.remember(future, tenures)
        future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        if not isinstance(error_of(future), UserLockError):
            self.forget()  # as in ndb, the application has to ask for other errors


def watch_over(future: Any, tenures: Iterable[HeldLock] = ()) -> Any:
    """Raise an operation's `UserLockError` at its end, unless the application asks for it.

    That is when its locks are left, which wait for it, or else its outermost ndb context. Returns
    the future.
    """
    context = current_context()
    if context is not None:
        _Operation(future, context, tenures)
    return future


def _raise_unreported(pending: dict[int, PendingWrite], where: str) -> None:
    """Raise the first error that nobody has asked for, and log the others."""
    errors: list[BaseException] = []
    for number, write in tuple(pending.items()):
        if write.future is not None and not write.future.done():
            continue
        error = write.unreported
        if error is not None:
            errors.append(error)
        pending.pop(number, None)
    for error in errors[1:]:
        log.error("another write %s failed", where, exc_info=error)
    if errors:
        raise errors[0]


# --- waiting --------------------------------------------------------------------------------


def _wait_for(write: PendingWrite) -> bool:
    """Wait until a write has landed, if that is possible here. Returns whether it has.

    Code in a transaction cannot wait for a write begun around it: their event loops wait for
    each other. Another thread gets limited time, and runs its loop itself.
    """
    future = write.future
    if future is None or future.done():
        return True
    if write.begun_by != threading.get_ident():
        return _wait_for_thread(future)
    current = current_context()
    if current is not None and current.eventloop is write.begun_in.eventloop:
        future.wait()
    elif current is None or current.transaction is None:
        # An exception has left its context, so ndb has not waited. Or this code is in another
        # context, whose cache must not get its entities.
        elsewhere = contextvars.Context()
        elsewhere.run(_wait_in_its_context, future, write.begun_in, current_scope())
    done: bool = future.done()
    return done


def _wait_in_its_context(future: Any, begun_in: Any, scope: Any) -> None:
    current_scope_variable.set(scope)
    with begun_in.use():
        future.wait()


def _wait_for_thread(future: Any) -> bool:
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    ends = time.monotonic() + _PATIENCE_WITH_THREADS
    # The future may be done before it has the callback, so poll as well.
    while not future.done() and time.monotonic() < ends:
        done.wait(0.05)
    landed: bool = future.done()
    return landed


def wait_for_key(ndb_key: Any, context: Any) -> None:
    """Wait for a write of the same entity on this event loop: a second put builds on the first."""
    flying = in_flight(context)
    while flying and ndb_key is not None:
        write = flying.get(ndb_key)
        if write is None or not _wait_for(write):
            return
        if flying.get(ndb_key) is write:  # another one may have begun meanwhile
            del flying[ndb_key]


def wait_for_all(context: Any) -> None:
    """Wait for all writes that are under way on the event loop of a context."""
    for write in tuple(in_flight(context).values()):
        _wait_for(write)


# --- leaving a lock or a context ------------------------------------------------------------


class DatastoreParticipant:
    """The model layer's part in the release of locks. Implements `scope.Participant`."""

    def leaving(self, tenure: HeldLock) -> None:
        """Wait for the writes that were begun under the lock.

        Raises the first error of a write that nobody has asked for, and logs the others.
        """
        pending = _pending(tenure)
        for write in _each(pending):
            if not _wait_for(write) and not self.holds(tenure):
                pending.pop(write.number, None)
                log.warning(
                    "lock %s is left before a write under it has landed: another thread has begun "
                    "it and does not finish it",
                    quoted(tenure.lock_id),
                )
        _raise_unreported(pending, f"under lock {quoted(tenure.lock_id)}")

    def holds(self, tenure: HeldLock) -> bool:
        """Return whether the lock stays for now: inside a transaction, until that is over."""
        return current_transaction() is not None

    def postpone(self, tenure: HeldLock, release: Callable[[], None]) -> None:
        """Release when this attempt of the transaction is over.

        First, writes land that were begun under the lock outside of the transaction meanwhile.
        """

        def release_quietly() -> None:
            try:
                futures = [each.future for each in _pending(tenure).values()]
                left = [each for each in futures if each is not None and not each.done()]
                if left:
                    left[0].add_done_callback(lambda _: release_quietly())
                else:
                    release()
            except Exception:
                # Raised here, a transient error would make ndb run the whole
                # transaction again, after it has been committed.
                log.exception(
                    "releasing lock %s after its transaction failed", quoted(tenure.lock_id)
                )

        current_context().call_on_transaction_complete(release_quietly)


def _each(pending: dict[int, PendingWrite]) -> Iterator[PendingWrite]:
    """Give each write once. A write that ends may begin another one, in a hook or a tasklet."""
    given: set[int] = set()
    while left := [number for number in pending if number not in given]:
        for number in left:
            given.add(number)
            write = pending.get(number)
            if write is not None:
                yield write


def finish_writes() -> None:
    """Wait for the writes of this request that were begun under no lock.

    Raises the first error of a write that nobody has asked for, and logs the others.
    """
    if current_context() is not None:
        pending = request_notes().pending
        for write in _each(pending):
            _wait_for(write)
        _raise_unreported(pending, "of this request")


def leave_context(outermost: Any) -> None:
    """Raise the errors that `finish_writes` would, for an outermost context that has been left."""
    _raise_unreported(request_notes(outermost).pending, "of this context")


# --- transactions ---------------------------------------------------------------------------


class _Attempts:
    """The function of a transaction, which ndb may call again if the locks are still held."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._latest = Attempt()

    def __call__(self) -> Any:
        for ticket in self._latest.tickets:
            ticket.trying_again()
        attempt = self._latest = current_attempt()
        current_context().call_on_transaction_complete(attempt.end)
        return self._run()

    def committed(self) -> None:
        """Call the functions that wait for the commit, outside of locks."""
        for scope, callback in self._latest.afterwards:
            if scope is None:
                callback()
            else:
                scope.when_free(callback)


def after_commit(callback: Callable[[], object]) -> None:
    """Call a function after the running transaction, when its scope holds no lock any more.

    Not after a rollback, and not if it is unknown whether the transaction was committed. Unlike
    in ndb's `call_on_commit`, where an error runs a committed transaction again, the transaction
    is over by then. The function must not raise.
    """
    current_attempt().afterwards.append((current_scope(), callback))


def run_transaction(begin: Any, callback: Any, *args: Any, **kwargs: Any) -> Any:
    """Begin a transaction, after the writes that are under way: it sees the state at its beginning.

    The wait is outside of ndb's retries, which would disguise its errors as those of nested calls.
    """
    context = current_context()
    if context is None or context.transaction:  # ndb raises an error, or the transaction is joined
        return begin(callback, *args, **kwargs)
    wait_for_all(context)
    # Of no lock: it may wait for code that runs after a lock is left.
    attempts = _Attempts(callback)
    return watch_over(_with_its_error(begin(attempts, *args, **kwargs), attempts))


@tasklets.tasklet
def _with_its_error(transaction: Any, attempts: _Attempts) -> Any:
    """Give a transaction's result, or its real error: ndb may have replaced its type."""
    try:
        result = yield transaction
    except Exception as error:
        failed = undisguised(error)
        # Nor does ndb try again what no attempt changes, unless it has taken it for a nested call.
        if isinstance(failed, RetryError) and isinstance(failed.cause, NestedRetryException):
            failed = undisguised(failed.cause)
    else:
        attempts.committed()
        return result
    raise failed


def undisguised(error: BaseException) -> BaseException:
    """Return the real error of a call that ndb has taken for a nested one."""
    while isinstance(error, NestedRetryException) and error.__context__ is not None:
        error = error.__context__
    return error


def is_conflict(error: BaseException) -> bool:
    """Return whether a transaction has failed because others wrote to the same rows."""
    error = undisguised(error)
    if isinstance(error, RetryError) and isinstance(error.cause, BaseException):
        error = undisguised(error.cause)
    return isinstance(error, Aborted)
