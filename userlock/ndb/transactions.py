"""Locks that are left, and transactions.

Writes begun under a lock land before it is released. A lock that is left inside a transaction
is kept until the transaction is over:

    A                                   B
    begin transaction
    lock, get, put (buffered), leave
                                        lock, get  ◀── would read what A is
    commit                                             about to change
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import inspect
import logging
import sys
import threading
import weakref
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, ParamSpec, TypeVar, overload

from google.api_core.exceptions import Aborted, GoogleAPIError, InvalidArgument, RetryError
from google.auth.exceptions import GoogleAuthError
from google.cloud import ndb
from google.cloud.ndb import tasklets
from google.cloud.ndb.exceptions import NestedRetryException

from userlock.arguments import check_bool, check_count
from userlock.datastore_rpc import Endpoint
from userlock.errors import UserLockError
from userlock.ids import quoted
from userlock.lock.held_lock import HeldLock, notes_of
from userlock.lock.scope import current_scope
from userlock.ndb.context import (
    Attempt,
    Books,
    current_attempt,
    current_context,
    current_transaction,
    in_transaction,
    known_notes,
    request_notes,
)
from userlock.ndb.pending import books_of, finish, note_failure, wait_for, wait_for_all
from userlock.words import text_of

log = logging.getLogger(__name__)

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class DatastoreParticipant:
    """The model layer's part in the release of locks. See `scope.participants`."""

    def leaving(self, tenure: HeldLock, *, failing: bool) -> None:
        """Wait for the writes that were begun under the lock: `pending.finish`."""
        books = notes_of(tenure).get("books")
        if isinstance(books, Books):
            where, wait = f"lock {quoted(tenure.lock_id)}", not self.holds(tenure)
            finish(books, where, wait=wait, failing=failing)

    def finish_own(self, tenure: HeldLock) -> None:
        """Wait for the writes under the lock that this thread has begun: no other may send them."""
        books = notes_of(tenure).get("books")
        if isinstance(books, Books):
            for write in tuple(books.writes.values()):
                if write.begun_by == threading.get_ident():
                    wait_for(write)

    def holds(self, tenure: HeldLock) -> bool:
        """Return whether the lock stays for now: inside a transaction, until that is over."""
        return current_transaction() is not None

    def postpone(self, tenure: HeldLock, release: Callable[[], None]) -> weakref.ref[Attempt]:
        """Release when this attempt of the transaction is over, and the writes have landed that
        were begun under the lock outside of the transaction meanwhile."""

        transaction = current_transaction()

        def release_when_landed(attempt: Attempt) -> None:
            left = [
                each.future
                for each in books_of(tenure).writes.values()
                if each.future is not None and not each.future.done()
                # ndb never ends those of the transaction if it was interrupted.
                if each.future is each.sent_by or each.begun_in.transaction is not transaction
            ]
            if left:
                left[0].add_done_callback(lambda _: release_when_landed(attempt))
                return
            try:
                release()
            except GoogleAPIError:
                # A transient one would make ndb run the whole transaction again, after it has been
                # committed.
                log.exception(
                    "releasing lock %s after its transaction failed", quoted(tenure.lock_id)
                )

        attempt = current_attempt()
        attempt.releases.append(release_when_landed)
        # `_end` has called it by then, unless the transaction began before this module was loaded.
        current_context().call_on_transaction_complete(attempt.release)
        return weakref.ref(attempt)


def finish_writes() -> None:
    """Wait for the writes of this request, under locks or not, and raise the first unseen error.

    Called before the outcome of the request is sent or stored: `pending.finish`.
    """
    scope, notes = current_scope(), known_notes()
    if scope is not None:
        scope.finish_writes()
    if notes is not None:
        finish(notes.books, "this request", under_locks=False)


def after_commit(callback: Callable[[], object]) -> None:
    """Call a function after the running transaction, when its scope holds no lock any more.

    Not after a rollback, and not if it is unknown whether the transaction was committed. Unlike
    in ndb's `call_on_commit`, the transaction is over by then. The function must not raise.
    """
    current_attempt().afterwards.append((current_scope(), callback))


class _Once(functools.partial[Any]):
    """The function of a transaction that is waited for.

    Attributes:
        begun: the transaction.
        over: whether its caller has an outcome: then it does not begin.
    """

    begun: Any = None
    over = False


def transaction(_: Any, callback: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a transaction. One that is interrupted, however early, is ended."""
    once = _Once(callback)
    try:
        return ndb.transaction_async(once, *args, **kwargs).result()
    except BaseException as error:
        once.over = True
        if once.begun is not None:
            _close(once.begun, error)
        raise


def run_transaction(begin: Any, callback: Any, *args: Any, **kwargs: Any) -> Any:
    """Begin a transaction after the writes that are under way, as it does not see later ones."""
    context = current_context()
    if context is None or context.transaction:  # ndb raises an error, or the transaction is joined
        return begin(callback, *args, **kwargs)
    # Outside of ndb's retries, which would disguise its errors as those of nested calls.
    under_way = wait_for_all(context)
    attempts: list[Attempt] = []  # at most one, the latest
    once = callback if type(callback) is _Once else None

    def run() -> Any:
        """Run the function, which ndb may do again if the locks are still held."""
        if once is not None and once.over:
            raise RuntimeError("the caller of this transaction was interrupted")
        attempt, context = current_attempt(), current_context()
        if attempts:
            before = attempts.pop()
            for write in before.tickets:
                write.trying_again()
            earlier = [write for write in before.tickets if not write.deleting]
            attempt.earlier = earlier or before.earlier
        attempts.append(attempt)
        context.call_on_transaction_complete(functools.partial(_end, attempt, context))
        return callback()

    begun = functools.partial(begin, run, *args, **kwargs)
    transaction = _with_its_error(_after(under_way, begun) if under_way else begun(), attempts)
    if once is not None:
        once.begun = transaction
    else:
        transaction.wait = functools.partial(_wait, transaction)
    return transaction


def _end(attempt: Attempt, context: Any) -> None:
    """End an attempt, and the locks that it keeps. ndb rolls back after an `Exception`, not after
    an interrupt: others would wait for a minute for what it has read.

    It is the first of ndb's callbacks: an error in one of them is the end of the later ones.
    """
    try:
        if not attempt.over:
            attempt.roll_back()
            context.cache.clear()
            if not sys.is_finalizing():  # where no thread can begin
                # In another thread: the garbage collector may call this inside of gRPC's own locks.
                rollback = Endpoint(context.client).begin_rollback
                _thread.start_new_thread(rollback, (context.transaction,))
    finally:
        if attempt.releases:
            attempt.release()


def _wait(transaction: Any) -> None:
    """Wait for a transaction, and end one whose wait is interrupted."""
    try:
        tasklets.Future.wait(transaction)
    except BaseException as error:
        _close(transaction, error)
        raise


def _close(transaction: Any, error: BaseException) -> None:
    """Close the tasklets of a transaction, which ends it and its locks. ndb would leave them to the
    garbage collector, and they would change the context of other code. Under a lock, wait for the
    answer to its commit, as code that goes on may read under the same lock."""
    future, outer = transaction, transaction.context
    attempt: Attempt | None = None
    while isinstance(future, type(transaction)) and not future.done():
        if future.context is not outer:
            future.context.cache.clear()  # of writes in doubt
            attempt = getattr(future.context.transaction, "attempt", attempt)
        with future.context.use(), contextlib.suppress(Exception):
            future.generator.close()
        future = future.waiting_on
    if not transaction.done():
        transaction.set_exception(error)
        # A reply that comes later resumes the closed tasklet, which would set them again.
        transaction.set_result = transaction.set_exception = lambda _: None
    for write in () if attempt is None else tuple(attempt.books.writes.values()):
        if write.future is write.sent_by is not None and len(write.books) > 1:
            wait_for(write)


@tasklets.tasklet
def _after(under_way: Any, begin: Callable[[], Any]) -> Any:
    yield under_way
    return (yield begin())


@tasklets.tasklet
def _with_its_error(transaction: Any, attempts: list[Attempt]) -> Any:
    """Give a transaction's result, or its real error: ndb may have replaced its type."""
    try:
        result = yield transaction
    except Exception as error:
        failed = undisguised(error)
        # Nor does ndb try again what no attempt changes, unless it has taken it for a nested call.
        if isinstance(failed, RetryError) and isinstance(failed.cause, NestedRetryException):
            failed = undisguised(failed.cause)
    else:
        for attempt in attempts:
            for scope, after in attempt.afterwards:
                if scope is None:
                    after()
                else:
                    scope.when_free(after)  # outside of locks
        return result
    if isinstance(failed, UserLockError):  # in ndb the application has to ask for other errors
        note_failure(failed, None, (), request_notes())
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


def is_outage(error: BaseException) -> bool:
    """Return whether Datastore does not answer, which concerns all rows, not this one alone."""
    error = undisguised(error)
    of_one = isinstance(error, InvalidArgument) or is_conflict(error)
    return isinstance(error, GoogleAPIError | GoogleAuthError) and not of_one


def failure_text(error: BaseException) -> str:
    """Return an error of one row, in words for an operator."""
    return "contention with other requests" if is_conflict(error) else text_of(error)


@contextlib.contextmanager
def open_transaction() -> Iterator[None]:
    """Run a block in a transaction, which is committed at its end and rolled back by an error.

    The block runs once: a conflict with another transaction is raised (`Aborted`), and the caller
    decides whether to run all again. Raises RuntimeError: there is a transaction already.
    """
    if in_transaction():
        raise RuntimeError("a transaction is open already, and transactions do not nest")
    over: Any = tasklets.Future("the block of a transaction")
    inside: Any = tasklets.Future("the context of the block")

    def begun() -> Any:
        inside.set_result(current_context())
        return over

    # ndb commits when the future that its function has returned is done.
    committed = ndb.transaction_async(begun, retries=0)
    try:
        tasklets.wait_any([inside, committed])
        if not inside.done():
            committed.check_success()
        with inside.result().use():
            yield
        over.set_result(None)
        committed.check_success()
    except BaseException as error:
        if isinstance(error, Exception) and not over.done():
            over.set_exception(error)
            committed.wait()  # until it is rolled back
            committed.exception()  # is raised here
        _close(committed, error)
        raise


@overload
def transactional(
    function: Callable[_Parameters, _Result], /
) -> Callable[_Parameters, _Result]: ...
@overload
def transactional(
    *,
    retries: int = 3,
    read_only: bool = False,
    join: bool = True,
    xg: bool = True,
    propagation: int | None = None,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]: ...
def transactional(
    function: Callable[..., Any] | None = None,
    /,
    *,
    retries: int = 3,
    read_only: bool = False,
    join: bool = True,
    xg: bool = True,
    propagation: int | None = None,
) -> Any:
    """Run each call of a function in a transaction, as `ndb.transactional()`, with types.

        @userlock.transactional
        def spend(user_id: str, points: int) -> None: ...

        @userlock.transactional(retries=0)
        def spend_once(user_id: str, points: int) -> None: ...

    A call inside a transaction joins it. Put the lock around the call: ndb may run the
    function again, and a lock taken inside is held until the transaction is over.

    Args:
        function: what runs in the transaction.
        retries: how often ndb runs it again after a transient error.
        read_only: whether the transaction only reads.
        join: whether a call inside a transaction joins it; else it raises `NotImplementedError`.
        xg: accepted as in ndb, which ignores it.
        propagation: an element of `ndb.TransactionOptions`, in place of `join`.

    Raises:
        TypeError: at the definition: a coroutine function or a generator would run after its
            transaction; or an option has another type.
        ValueError: at the definition: `retries` is negative.
    """
    check_count("retries", retries, least=0)
    for name, value in (("read_only", read_only), ("join", join), ("xg", xg)):
        check_bool(name, value)

    def decorated(function: Callable[..., Any]) -> Any:
        if runs_later(function):
            raise TypeError(
                f"userlock.transactional takes no coroutine function or generator, as "
                f"{getattr(function, '__qualname__', function)} is one: it would run after its "
                f"transaction. To fix it: decorate a plain function, and call it from a coroutine "
                f"by asyncio.to_thread"
            )
        make = ndb.transactional(
            retries=retries, read_only=read_only, join=join, xg=xg, propagation=propagation
        )
        return make(function)

    return decorated if function is None else decorated(function)


def runs_later(function: Any) -> bool:
    """Return whether a call of a function, or of a callable object, only makes a coroutine or a
    generator."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    function = getattr(function, "__func__", function)  # of a static method
    called = (function, type(function).__call__) if callable(function) else ()
    return any(kind(each) for kind in kinds for each in called)


def is_plain(function: Any) -> bool:
    """Return whether something can be called, and is no coroutine function or generator."""
    return callable(function) and not runs_later(function)


def call_to_end(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call a function of the app; a tasklet, to its end.

    Raises:
        TypeError: it has returned a coroutine or a generator, which nobody would run.
        RuntimeError: an asyncio task of its own was cancelled, which does not end ours.
    """
    name = getattr(function, "__qualname__", function)
    try:
        result = function(*args, **kwargs)
        if isinstance(result, tasklets.Future):
            result.result()
    except CancelledError as error:
        raise RuntimeError(f"{name} has run a task that was cancelled") from error
    if isinstance(result, CoroutineType | GeneratorType | AsyncGeneratorType):
        raise TypeError(
            f"{name} has returned a {type(result).__name__}, which nobody runs. To fix it: run it "
            f"inside"
        )
