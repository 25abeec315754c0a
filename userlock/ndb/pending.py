"""Writes that are on their way, and errors that the application has not seen.

An error travels as one object, from the write to the code that catches it:

    write ──▶ future of the put ──▶ tasklet ──▶ future of the tasklet ──▶ application
              set_exception         exception   set_exception             result

It is *unseen* while it lies in a future that nobody has asked for it. A tasklet that asks
and does not catch it puts it into its own future, where it is unseen again. So it does
not matter whose future was dropped. A lock or a context that is left raises the first
unseen error of its writes.
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import grpc
from google.cloud.ndb import tasklets

from userlock.lock.held_lock import HeldLock, notes_of
from userlock.lock.scope import current as current_scope_variable
from userlock.lock.scope import current_scope
from userlock.ndb.commits import is_transient
from userlock.ndb.context import Books, RequestNotes, current_context, request_notes

log = logging.getLogger(__name__)

#: Longest wait for writes of other threads, in seconds. They are fenced all the same.
_PATIENCE_WITH_THREADS = 5.0
#: Longest wait for a write before its lock is released: ndb's deadline of an RPC, and some.
_PATIENCE = 70.0
#: How often to look whether its reply has come and was lost.
_LOOK_SECONDS = 0.5
_MOST_TURNS = 100  # an error that is handed on takes one turn of the event loop for each tasklet


def books_of(tenure: HeldLock) -> Books:
    notes: Any = notes_of(tenure)
    found: Books = notes.get("books") or notes.setdefault("books", Books())
    return found


def finish(books: Books, where: str, *, wait: bool = True, **how: bool) -> None:
    """Wait for the writes, then `raise_unseen`. Without `wait`, some may not have landed yet."""
    given: set[int] = set()
    # A write that ends may begin another one, in a hook or a tasklet.
    while books.writes and (
        left := [write for number, write in tuple(books.writes.items()) if number not in given]
    ):
        for write in left:
            given.add(write.number)
            if not wait_for(write) and wait:
                books.writes.pop(write.number, None)
                log.warning(
                    "%s is left before a write under it has landed: no reply comes, or another "
                    "thread has begun it and does not finish it",
                    where,
                )
    if books.failures:
        moves = None
        for _ in range(_MOST_TURNS if current_context() else 0):
            if Failure.moves == moves:
                break
            moves = Failure.moves
            tasklets.sleep(0).wait()
        raise_unseen(books, where, **how)


def raise_unseen(
    books: Books, where: str, *, under_locks: bool = True, failing: bool = False
) -> None:
    """Raise the first unseen error of a write, and log the others; with `under_locks` also those of
    which a lock is held, whose end would raise them. If an exception is on its way (`failing`) log
    all: they stay unseen, as the application may catch that exception and go on."""
    errors = []
    for failure in tuple(books.failures.values()):
        tenures = (tenure for _, held in failure.writes for tenure in held)
        if under_locks or not any(tenure.held for tenure in tenures):
            error = failure.unseen
            if error is not None:
                errors.append(error)
                if not failing:
                    failure.settle()
    for error in errors[not failing :]:
        log.error("a write of %s failed as well", where, exc_info=error)
    if errors and not failing:
        raise errors[0]


# --- errors ---------------------------------------------------------------------------------


class Failure:
    """The error of one or more writes of a request. It is in books while it is referenced."""

    moves = 0  # how often such errors have been put into futures, or taken out, in this process

    def __init__(self, error: BaseException) -> None:
        number = id(error)
        self.books: set[Books] = set()
        books = self.books

        def gone(_: object) -> None:
            for each in books:
                each.failures.pop(number, None)

        try:
            self._alive: Any = weakref.ref(error, gone)
        except TypeError:  # one of Python's own classes: until the end of the request
            self._alive = error
        #: The subject and the tenures of each write that has this error.
        self.writes: list[tuple[Any, tuple[HeldLock, ...]]] = []
        #: The ids of the futures that nobody has asked for it; while there are any, the error.
        self._unasked: set[int] = set()
        self._kept: BaseException | None = None
        #: The error's traceback when it was put into the last of them. It grows when it is raised:
        #: code that had been waiting before the error came has got it.
        self._traceback: Any = None

    @property
    def unseen(self) -> BaseException | None:
        """Return the error, if it lies in a future that nobody has asked for it."""
        if self._kept is not None and self._kept.__traceback__ is not self._traceback:
            self.settle()
        return self._kept

    def lies_in(self, future: Any, error: BaseException) -> None:
        """Note that a future has the error now, and learn when it is asked for it."""
        Failure.moves += 1
        self._unasked.add(id(future))
        self._kept, self._traceback = error, error.__traceback__
        ask = type(future).exception

        def exception() -> Any:
            Failure.moves += 1
            self._unasked.discard(id(future))
            if not self._unasked:
                self.settle()
            return ask(future)

        vars(future).update(exception=exception, get_exception=exception)

    def forget(self, key: Any, entity: Any) -> None:
        """Note that a later write of an entity has landed."""
        left = [each for each in self.writes if each[0] is None or each[0] is not entity]
        self.writes = [each for each in left if each[0] != key]
        if not self.writes:
            self.settle()

    def settle(self) -> None:
        """Note that nobody has to learn of the error any more."""
        self._unasked.clear()
        self._kept = self._traceback = None  # whose frames have the error


def failure_of(error: BaseException) -> Failure | None:
    """Return the notes about an error of a write of this request; None if it is another one's."""
    return request_notes().books.failures.get(id(error)) if current_context() else None


def note_failure(
    error: BaseException,
    subject: Any,
    tenures: Iterable[HeldLock],
    notes: RequestNotes,
    *more: Books,
) -> Failure:
    """Note the error of a write. It is unseen as soon as it lies in a future."""
    tenures = tuple(tenures)
    failures = notes.books.failures
    for each in tuple(failures.values()):
        each.unseen  # noqa: B018 (lets go of those that the application has got meanwhile)
    failure = failures.get(id(error)) or Failure(error)
    failure.writes.append((subject, tenures))
    for books in (notes.books, *map(books_of, tenures), *more):
        failure.books.add(books)
        books.failures[id(error)] = failure
    return failure


def set_exception(future: Any, exception: Any) -> None:
    """Replace ndb's `Future.set_exception`: the error of a write is unseen (again)."""
    failure = failure_of(exception)
    if failure is not None and not future.done():
        failure.lies_in(future, exception)
    set_exception.__wrapped__(future, exception)  # type: ignore[attr-defined]


_numbers = itertools.count(1)  # of the writes of this process


class PendingWrite:
    """A write, or an operation that writes, until it is over."""

    future: Any = None  # ndb's future of it, while it is on its way
    sent_by: Any = None  # what sends it, a gRPC future; None before
    #: The request's writes under way, by key; it may be among them, by its own.
    _flying: dict[Any, Any] = {}  # noqa: RUF012 (of those that are in none)
    key: Any = None

    def __init__(self, context: Any, books: Iterable[Books] = ()) -> None:
        self.books = list(books)
        self.number = next(_numbers)
        self.begun_in = context
        self.begun_by = threading.get_ident()

    def enter(self, future: Any) -> None:
        self.future = future
        for books in self.books:
            books.writes[self.number] = self
        future.add_done_callback(self._over)

    def forget(self) -> None:
        for books in self.books:
            books.writes.pop(self.number, None)
        if self._flying and self._flying.get(self.key) is self:
            self._flying.pop(self.key, None)  # as another thread may, which has waited for it
        self.future = None

    def _over(self, future: Any) -> None:
        if self.sent_by is None or self.sent_by.done():
            self.forget()


def watch_over(future: Any) -> Any:
    """Have the locks that are held now wait for an operation that writes. Returns its future."""
    context, scope = current_context(), current_scope()
    if context is not None and scope is not None and scope.held:
        PendingWrite(context, map(books_of, scope.held.values())).enter(future)
    return future


def watch_commit(sent_by: Any, books: Iterable[Books]) -> None:
    """Have locks wait for the answer to a transaction's commit, whatever ndb's wait ends by."""
    write = PendingWrite(current_context(), books)
    write.sent_by = sent_by
    write.enter(sent_by)


# --- waiting --------------------------------------------------------------------------------


def wait_for(write: PendingWrite) -> bool:
    """Wait until a write is over, if that is possible here. Returns whether it is.

    Code in a transaction cannot wait for a write begun around it: their event loops wait for
    each other. Another thread gets limited time, and runs its loop itself.
    """
    future = write.future
    if future is None:
        return True
    if not future.done() and future is not write.sent_by:
        if write.begun_by != threading.get_ident():
            return _wait_for_thread(future)
        current, loop = current_context(), write.begun_in.eventloop
        if current is not None and current.eventloop is loop:
            exhausted = _run_until_done(write, loop)
        elif current is None or current.transaction is None:
            # An exception has left its context, so ndb has not waited. Or this code is in another
            # context, whose cache must not get its entities.
            exhausted = contextvars.Context().run(_run_in_its_context, write, current_scope())
        else:
            return False
        if not future.done() and not exhausted:
            return False
    return _wait_for_reply(write)


def _run_in_its_context(write: PendingWrite, scope: Any) -> bool:
    current_scope_variable.set(scope)
    with write.begun_in.use():
        return _run_until_done(write, write.begun_in.eventloop)


def _wait_for_reply(write: PendingWrite) -> bool:
    """Wait for the answer to a write whose future has another error. Its own error is logged."""
    future = write.future
    if future is None or write.sent_by is None:
        return future is None or future.done()
    try:
        error = write.sent_by.exception(_PATIENCE)
    except grpc.FutureTimeoutError:
        return False
    write.forget()
    if error is not None:
        log.error("a write whose wait was interrupted has failed", exc_info=error)
    return True


def _run_until_done(write: PendingWrite, eventloop: Any) -> bool:
    """Run an event loop until a write is done, for a limited time. Returns whether it never will
    be: an exception has gone through ndb's code between sending it and taking its reply."""
    future, ends = write.future, time.monotonic() + _PATIENCE
    answered: Any = None
    while not future.done() and time.monotonic() < ends:
        if _is_exhausted(eventloop, future):
            return True
        reply = write.sent_by
        if reply is not None and reply.done():
            if answered is reply and not is_transient(reply.exception()):  # ndb sends no other
                return True
            answered = reply
    return False


def _is_exhausted(eventloop: Any, future: Any) -> bool:
    """Run an event loop until a future is done, or for `_LOOK_SECONDS`, as it may wait for a reply
    that an exception has lost. Returns whether it has run out of things to do."""
    late = tasklets.Future("it is time to look")

    def wake() -> None:
        late.set_result(None)
        bell: Future[None] = Future()
        bell.set_result(None)
        eventloop.queue_rpc(bell, lambda _: None)  # an RPC that has ended wakes the loop

    timer = threading.Timer(_LOOK_SECONDS, wake)
    timer.daemon = True
    timer.start()
    try:
        tasklets.wait_any([future, late])
    except RuntimeError as error:
        if "exhausted" not in str(error):
            raise
        return True
    finally:
        timer.cancel()
    return False


def _wait_for_thread(future: Any) -> bool:
    ends = time.monotonic() + _PATIENCE_WITH_THREADS
    while not future.done() and time.monotonic() < ends:
        time.sleep(0.01)  # a callback of the future could come too late: it is not thread-safe
    landed: bool = future.done()
    return landed


def wait_for_key(ndb_key: Any, flying: dict[Any, Any]) -> None:
    """Wait for the writes of an entity that are `flying`: a second put builds on the first, and ndb
    sends the writes of one turn in one commit, which must not change an entity twice."""
    while (write := flying.get(ndb_key)) is not None and wait_for(write):
        if flying.get(ndb_key) is write:  # another one may have begun meanwhile
            flying.pop(ndb_key, None)


_waiting: contextvars.ContextVar[bool] = contextvars.ContextVar("userlock_waiting", default=False)


def wait_for_all(context: Any) -> Any:
    """Wait for the writes that this thread has under way on the event loop of a context. Those of
    other threads may need this one to go on; fencing keeps the two apart.

    A call within such a wait does not wait. It returns a future that is done when they are: many
    tasklets that wait would run the event loop inside of each other, until Python refuses.
    """
    flying = request_notes().flying
    if not flying:
        return None
    writes = [
        write
        for write in tuple(flying.values())
        if write.begun_by == threading.get_ident() and write.begun_in.eventloop is context.eventloop
    ]
    if _waiting.get():
        return _end_of([write.future for write in writes if write.future is not None])
    token = _waiting.set(True)
    try:
        for write in writes:
            wait_for(write)
    finally:
        _waiting.reset(token)
    return None


def _end_of(futures: list[Any]) -> Any:
    """Return a future that is done after the others, whatever their outcome; None if they are."""
    left = {id(each) for each in futures if not each.done()}
    if not left:
        return None
    end = tasklets.Future("the writes before a transaction")

    def over(future: Any) -> None:
        left.discard(id(future))
        if not left:
            end.set_result(None)

    for each in futures:
        each.add_done_callback(over)
    return end
