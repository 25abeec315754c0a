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

import contextvars
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from google.cloud.ndb import exceptions, tasklets

from userlock.errors import UserLockError
from userlock.lock.held_lock import HeldLock
from userlock.lock.scope import current as current_scope_variable
from userlock.lock.scope import current_scope
from userlock.ndb.context import (
    current_attempt,
    current_context,
    in_flight,
    in_transaction,
    request_notes,
)

log = logging.getLogger(__name__)

#: In seconds. What has not landed by then is fenced all the same.
_PATIENCE_WITH_THREADS = 5.0


class PendingWrite(Protocol):
    """A write whose outcome is not known yet.

    Attributes:
        number: its own.
        future: its outcome to be; None once it has landed, or somebody was told that it has not.
        begun_in: the ndb context that it was begun in.
        begun_by: the thread.
        untold: its error, while nobody has been told of it.
    """

    number: int
    future: Any
    begun_in: Any
    begun_by: int

    @property
    def untold(self) -> BaseException | None: ...


# --- futures whose errors must not vanish ---------------------------------------------------


def _make_observed(kind: Any) -> Any:
    class Observed(kind):
        """A future that notes whether somebody has been told of its error."""

        _userlock_told = False
        #: Called once when somebody is told.
        _userlock_when_told: Any = None

        def check_success(self) -> None:
            try:
                super().check_success()  # waits for it
            except BaseException:
                self._userlock_tell()
                raise

        def exception(self) -> Any:
            error = super().exception()
            if error is not None:
                self._userlock_tell()
            return error

        get_exception = exception

        def _userlock_tell(self) -> None:
            self._userlock_told = True
            told, self._userlock_when_told = self._userlock_when_told, None
            if told is not None:
                told()

    Observed.__name__ = kind.__name__
    return Observed


_observed: dict[Any, Any] = {}


def observe(future: Any) -> None:
    """Note from now on whether somebody is told of a future's error.

    An error of a `put_async` whose future is dropped would vanish; one that
    the caller has seen must not be raised a second time.
    """
    kind: Any = type(future)
    if not hasattr(kind, "_userlock_told"):
        if kind not in _observed:
            _observed[kind] = _make_observed(kind)
        future.__class__ = _observed[kind]


def error_of(future: Any) -> BaseException | None:
    """Return the error that a future has ended with. Asking does not count as being told."""
    if not future.done():
        return None
    error: BaseException | None = tasklets.Future.exception(future)
    return error


def untold_error(future: Any) -> BaseException | None:
    """Return the error of an observed future that is done, while nobody has been told of it."""
    return None if future._userlock_told else error_of(future)


# --- waiting --------------------------------------------------------------------------------


def wait_for(write: PendingWrite) -> bool:
    """Have a write land, if that can be done here. Returns whether it has.

    Not from within a transaction for what was begun around it: their event
    loops wait for each other. Not for ever for another thread, which runs its
    loop itself: of two that run one loop, one would wait for what the other
    has taken.
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
        # Its context was left by an exception, so that ndb has not waited; or this is within
        # another one, whose cache must not be mixed with its.
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
    # It may have become done before there was a callback: so look, too.
    while not future.done() and time.monotonic() < ends:
        done.wait(0.05)
    landed: bool = future.done()
    return landed


def wait_for_key(ndb_key: Any, context: Any) -> None:
    """Wait for a write of the same entity that is under way on this event loop, if there is one.

    A second put of one object builds on the version that the first one makes.
    """
    flying = in_flight(context)
    while flying and ndb_key is not None:
        write = flying.get(ndb_key)
        if write is None or not wait_for(write):
            return
        if flying.get(ndb_key) is write:  # another one may have begun meanwhile
            del flying[ndb_key]


def wait_for_all(context: Any) -> None:
    """Wait for all writes that are under way on the event loop of a context."""
    for write in tuple(in_flight(context).values()):
        wait_for(write)


# --- pending writes of a lock ---------------------------------------------------------------


def _pending(tenure: HeldLock) -> dict[int, PendingWrite]:
    pending = tenure.notes.get("pending")
    if pending is None:
        pending = tenure.notes["pending"] = {}
    return pending  # type: ignore[return-value]


def note_pending(write: Any, tenures: Iterable[HeldLock]) -> list[dict[int, Any]]:
    """Remember a write until it has landed, or somebody has been told that it has not.

    Args:
        write: one that has just been begun.
        tenures: of the locks that it is begun under; none: it is the request's.

    Returns:
        Where it is remembered, for it to be forgotten.
    """
    places: list[dict[int, Any]] = [_pending(tenure) for tenure in tenures]
    if not places and write.begun_in.transaction is None:
        places = [request_notes().pending]
    for pending in places:
        pending[write.number] = write
    observe(write.future)
    write.future._userlock_when_told = write.forget
    return places


class _Operation:
    """An asynchronous operation that writes, until it is over. Implements `PendingWrite`.

    ndb's tasklet asks for the errors of the operation's writes. So only its own future tells
    whether the application has seen them.
    """

    _numbers = itertools.count(-1, -1)  # tickets have the others

    def __init__(self, future: Any, context: Any, tenures: Iterable[HeldLock]) -> None:
        self.number = next(self._numbers)
        self.future: Any = future
        self.begun_in = context
        self.begun_by = threading.get_ident()
        self._pending_in = note_pending(self, tenures)
        future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        if not isinstance(error_of(future), UserLockError):
            self.forget()  # other errors are for the application to ask for, as in ndb

    def forget(self) -> None:
        for pending in self._pending_in:
            pending.pop(self.number, None)
        future, self.future = self.future, None  # each keeps the other
        if future is not None:
            future._userlock_when_told = None

    @property
    def untold(self) -> BaseException | None:
        return None if self.future is None else untold_error(self.future)


def watch_over(future: Any, tenures: Iterable[HeldLock] = ()) -> Any:
    """Have an operation's `UserLockError` raised, unless the application asks for it.

    When its locks are left, or else its outermost ndb context.

    Args:
        future: of the operation.
        tenures: of the locks that wait for the operation before they are left. None for one that
            may itself wait for code that runs after that.

    Returns:
        The future.
    """
    context = current_context()
    if context is not None:
        _Operation(future, context, tenures)
    return future


def _raise_untold(pending: dict[int, PendingWrite], where: str) -> None:
    """Raise the first error that nobody has been told of, and log the others."""
    errors: list[BaseException] = []
    for number, write in tuple(pending.items()):
        if write.future is not None and not write.future.done():
            continue
        error = write.untold
        if error is not None:
            errors.append(error)
        pending.pop(number, None)
    for error in errors[1:]:
        log.error("another write %s failed", where, exc_info=error)
    if errors:
        raise errors[0]


class DatastoreParticipant:
    """The model layer's say when locks are left. Implements `lock.tenure.Participant`."""

    def leaving(self, tenure: HeldLock) -> None:
        """Wait for the writes that were begun under the lock.

        Raises:
            Exception: the first error of a write that nobody has asked for (a `put_async`
                whose future was dropped); others are logged.
        """
        pending = _pending(tenure)
        for write in _each(pending):
            if not wait_for(write) and not self.holds(tenure):
                pending.pop(write.number, None)
                log.warning(
                    "lock %r is left before a write under it has landed: another thread has begun "
                    "it and does not finish it",
                    tenure.lock_id,
                )
        _raise_untold(pending, f"under lock {tenure.lock_id!r}")

    def holds(self, tenure: HeldLock) -> bool:
        """Inside a transaction the lock stays until it is over."""
        return in_transaction()

    def postpone(self, tenure: HeldLock, release: Callable[[], None]) -> None:
        """Inside a transaction: release when this attempt of it is over.

        And when all has landed that was begun under the lock outside of it meanwhile.
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
                log.exception("releasing lock %r after its transaction failed", tenure.lock_id)

        current_context().call_on_transaction_complete(release_quietly)


def _each(pending: dict[int, PendingWrite]) -> Iterator[PendingWrite]:
    """Give each write once. What finishes may begin another: a hook, or a tasklet."""
    given: set[int] = set()
    while left := [number for number in pending if number not in given]:
        for number in left:
            given.add(number)
            write = pending.get(number)
            if write is not None:
                yield write


def finish_writes() -> None:
    """Have the writes of this request land that were begun under no lock.

    Raises:
        Exception: the first error of one that nobody has asked for; others are logged.
    """
    if current_context() is not None:
        pending = request_notes().pending
        for write in _each(pending):
            wait_for(write)
        _raise_untold(pending, "of this request")


def leave_context(outermost: Any) -> None:
    """Raise what `finish_writes` would, of an outermost context that has just been left."""
    _raise_untold(request_notes(outermost).pending, "of this context")


# --- transactions ---------------------------------------------------------------------------


class _Runs:
    """A transaction's function, and what its last attempt has begun."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._tickets: list[Any] = []

    def __call__(self) -> Any:
        for ticket in self._tickets:
            ticket.trying_again()
        attempt = current_attempt()
        current_context().call_on_transaction_complete(attempt.end)
        self._tickets = attempt.tickets
        return self._run()


def run_transaction(callback: Any, begin: Callable[[Any], Any]) -> Any:
    """Begin a transaction. It sees what was there at its beginning: let our own writes land.

    Outside ndb's retry wrapper, which takes an error of the transaction for one
    of a call within a call as long as any other call is under way.
    """
    context = current_context()
    if context is None or context.transaction:  # an error of ndb's, or joined
        return begin(callback)
    wait_for_all(context)
    return watch_over(_Outcome(begin(_Runs(callback))))


class _Outcome(tasklets.Future):
    """A transaction's future, with what a disguised error was.

    ndb gives it another type, and its text alone. A tasklet would do the same, at the cost of
    another ten steps of ndb's event loop.
    """

    def __init__(self, transaction: Any) -> None:
        super().__init__(info="transaction")
        self._userlock_transaction = transaction
        transaction.add_done_callback(self._userlock_take)

    def _userlock_take(self, transaction: Any) -> None:
        error = transaction.exception()
        if self.done():
            return
        if error is None:
            self.set_result(transaction.result())
        else:
            self.set_exception(undisguised(error))

    def cancel(self) -> None:
        self._userlock_transaction.cancel()


def undisguised(error: BaseException) -> BaseException:
    """Return the error of a call that ndb has taken for one within another call."""
    while isinstance(error, exceptions.NestedRetryException) and error.__context__ is not None:
        error = error.__context__
    return error
