"""Writes that are on their way, and errors that the application has not seen.

An error travels as one object, from the write to the code that catches it:

    write ──▶ future of the put ──▶ tasklet ──▶ future of the tasklet ──▶ application
              set_exception         exception   set_exception             result

It is *unseen* while it lies in a future and nobody has asked that future for it. A
tasklet that asks and does not catch it puts it into its own future, where it is unseen
again. So it does not matter whose future was dropped. A lock or a context that is
left raises the first unseen error of its writes.
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from google.cloud.ndb import tasklets

from userlock.lock.held_lock import HeldLock, notes_of
from userlock.lock.scope import current as current_scope_variable
from userlock.lock.scope import current_scope
from userlock.ndb.context import RequestNotes, current_context, in_flight, request_notes

log = logging.getLogger(__name__)

#: Longest wait for writes of other threads, in seconds. They are fenced all the same.
_PATIENCE_WITH_THREADS = 5.0
#: Longest wait for a write before its lock is released: ndb's deadline of an RPC, and some.
_PATIENCE = 70.0
#: An error that is handed on takes one turn of the event loop for each tasklet.
_MOST_TURNS = 100


# --- books ----------------------------------------------------------------------------------


class Books:
    """The writes on their way, and the unseen errors, of one tenure or one request."""

    def __init__(self) -> None:
        self.writes: dict[int, PendingWrite] = {}
        #: The latest put of each entity, by key: a `provenance.LastPut`, or None.
        self.puts: dict[Any, Any] = {}
        #: By the id of the error.
        self.unseen: dict[int, tuple[BaseException, Failure]] = {}
        self.had_failure = False

    def forget(self, ndb_key: Any) -> None:
        """Forget the errors of earlier writes of an entity, since a later one has landed."""
        for _, failure in tuple(self.unseen.values()):
            failure.forget(ndb_key)

    def prune(self) -> None:
        """Drop the errors that the application has got meanwhile."""
        for error, failure in tuple(self.unseen.values()):
            if not failure.unseen(error):
                failure.settle()

    def finish(self, where: str, *, wait: bool = True) -> None:
        """Wait for the writes. Raise the first unseen error, and log the others.

        `wait`: otherwise it is left open which of them have landed.
        """
        for write in self._each():
            if not wait_for(write) and wait:
                self.writes.pop(write.number, None)
                log.warning(
                    "%s is left before a write under it has landed: no reply comes, or another "
                    "thread has begun it and does not finish it",
                    where,
                )
        if self.had_failure:
            self._let_errors_arrive()
            self.raise_unseen(where)

    def _each(self) -> Iterable[PendingWrite]:
        """Give each write once. A write that ends may begin another one, in a hook or a tasklet."""
        given: set[int] = set()
        while left := [number for number in self.writes if number not in given]:
            for number in left:
                given.add(number)
                write = self.writes.get(number)
                if write is not None:
                    yield write

    def _let_errors_arrive(self) -> None:
        """Run the turns in which ndb hands errors on to tasklets."""
        moves = None
        for _ in range(_MOST_TURNS):
            if current_context() is None or Failure.moves == moves:
                return
            moves = Failure.moves
            tasklets.sleep(0).wait()

    def raise_unseen(self, where: str) -> None:
        """Raise the first unseen error, and log the others."""
        unseen = tuple(self.unseen.values())
        errors = [error for error, failure in unseen if failure.unseen(error)]
        for _, failure in unseen:
            failure.settle()
        for error in errors[1:]:
            log.error("another write of %s failed", where, exc_info=error)
        if errors:
            raise errors[0]


def books_of_request(notes: RequestNotes) -> Books:
    """Return the books of a request, for what belongs to no lock and no transaction."""
    if notes.books is None:
        notes.books = Books()
    books: Books = notes.books
    return books


def books_of(tenure: HeldLock) -> Books:
    """Return the books of a tenure."""
    books = notes_of(tenure).get("books")
    if books is None:
        books = notes_of(tenure).setdefault("books", Books())
    return books  # type: ignore[return-value]


# --- errors ---------------------------------------------------------------------------------


class Failure:
    """The error of writes of one request, for as long as anybody has it.

    Attributes:
        moves: how often such errors have been put into futures, or taken out, in this process.
    """

    moves = 0

    def __init__(self, notes: RequestNotes) -> None:
        self._notes = notes
        #: The key and the tenures of each write that has this error.
        self._writes: list[tuple[Any, tuple[HeldLock, ...]]] = []
        #: The ids of the futures that nobody has asked for it.
        self._unasked: set[int] = set()
        #: The error's traceback when it was put into the last of them. It grows when it is raised:
        #: code that had been waiting before the error came has got it.
        self._traceback: Any = None
        self._books: list[Books] = []

    def unseen(self, error: BaseException) -> bool:
        """Return whether the error lies in a future that nobody has asked for it."""
        return bool(self._unasked) and error.__traceback__ is self._traceback

    def add(self, key: Any, tenures: Iterable[HeldLock]) -> None:
        """Note one more write that has the error."""
        self._writes.append((key, tuple(tenures)))

    def lies_in(self, future: Any, error: BaseException) -> None:
        """Note that a future has the error now, and learn when it is asked for it."""
        Failure.moves += 1
        self._unasked.add(id(future))
        self._traceback = error.__traceback__
        _watch(future, self)
        for _, tenures in self._writes:
            books = [books_of(tenure) for tenure in tenures if tenure.held]
            for each in books or [books_of_request(self._notes)]:
                each.prune()
                self._books.append(each)
                each.unseen[id(error)] = error, self
                each.had_failure = True

    def asked(self, future: Any) -> None:
        """Note that somebody has asked a future for the error."""
        Failure.moves += 1
        self._unasked.discard(id(future))
        if not self._unasked:
            self.settle()

    def forget(self, key: Any) -> None:
        """Note that a later write of an entity has landed."""
        self._writes = [each for each in self._writes if each[0] != key]
        if not self._writes:
            self.settle()

    def settle(self) -> None:
        """Note that nobody has to learn of the error any more."""
        self._unasked.clear()
        books, self._books = self._books, []
        for each in books:
            each.unseen = {n: pair for n, pair in each.unseen.items() if pair[1] is not self}


def _watch(future: Any, failure: Failure) -> None:
    """Learn when somebody asks a future, which is done or about to be, for its error."""
    ask = type(future).exception

    def exception() -> Any:
        failure.asked(future)
        return ask(future)

    vars(future).update(exception=exception, get_exception=exception)


def failure_of(error: BaseException) -> Failure | None:
    """Return the notes about an error of a write of this request; None if it is another one's."""
    if current_context() is None:
        return None
    found = request_notes().failures.get(id(error))
    return None if found is None else found[1]


def note_failure(
    error: BaseException, key: Any, tenures: Iterable[HeldLock], notes: RequestNotes
) -> Failure:
    """Note the error of a write. It is unseen as soon as it lies in a future."""
    number, failures = id(error), notes.failures
    if number not in failures:
        try:
            alive: Any = weakref.ref(error, lambda _: failures.pop(number, None))
        except TypeError:  # one of Python's own classes: until the end of the request
            alive = error
        failures[number] = alive, Failure(notes)
    failure: Failure = failures[number][1]
    failure.add(key, tenures)
    return failure


def setting(set_exception: Any) -> Any:
    """Return ndb's `Future.set_exception`, which makes the error of a write unseen (again)."""

    def set_exception_unseen(future: Any, exception: Any) -> None:
        failure = failure_of(exception)
        if failure is not None and not future.done():
            failure.lies_in(future, exception)
        set_exception(future, exception)

    return set_exception_unseen


# --- writes on their way --------------------------------------------------------------------


#: Of the writes of this process.
_numbers = itertools.count(1)


class PendingWrite:
    """A write, or an operation that writes, until it is over."""

    entity_key: Any = None
    #: ndb's future of it, while it is on its way, or has failed.
    future: Any = None
    #: What sends it, a gRPC future; None before.
    sent_by: Any = None
    #: The `in_flight` writes that it is among, by its key.
    _flying: dict[Any, Any] = {}  # noqa: RUF012 (of those that are in none)
    _key: Any = None

    def __init__(self, context: Any, books: Iterable[Books] = ()) -> None:
        self.books = list(books)
        self.number = next(_numbers)
        self.begun_in = context
        self.begun_by = threading.get_ident()

    def enter(self, future: Any) -> None:
        """Enter it in its books, until it is over."""
        self.future = future
        for books in self.books:
            books.writes[self.number] = self
        future.add_done_callback(self._over)

    def forget(self) -> None:
        """Leave the books."""
        for books in self.books:
            books.writes.pop(self.number, None)
        if self._flying and self._flying.get(self._key) is self:
            del self._flying[self._key]
        self.future = None

    def _over(self, future: Any) -> None:
        if self.sent_by is None or self.sent_by.done():
            self.forget()


def error_of(future: Any) -> BaseException | None:
    """Return the error that a future has ended with, without asking it."""
    if not future.done():
        return None
    error: BaseException | None = tasklets.Future.exception(future)
    return error


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
    if future.done() or future is write.sent_by:
        return _wait_for_reply(write)
    if write.begun_by != threading.get_ident():
        return _wait_for_thread(future)
    current = current_context()
    exhausted = False
    if current is not None and current.eventloop is write.begun_in.eventloop:
        exhausted = _run_until_done(future, current.eventloop)
    elif current is None or current.transaction is None:
        # An exception has left its context, so ndb has not waited. Or this code is in another
        # context, whose cache must not get its entities.
        elsewhere = contextvars.Context()
        exhausted = elsewhere.run(_wait_in_its_context, future, write.begun_in, current_scope())
    if not future.done() and not exhausted:
        return False
    return _wait_for_reply(write)


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


def _wait_in_its_context(future: Any, begun_in: Any, scope: Any) -> bool:
    current_scope_variable.set(scope)
    with begun_in.use():
        return _run_until_done(future, begun_in.eventloop)


class _Bell:
    """Wakes an event loop, which takes it for an RPC that has ended."""

    def add_done_callback(self, wake: Callable[[Any], object]) -> None:
        """Call the loop's function at once."""
        wake(self)


def _run_until_done(future: Any, eventloop: Any) -> bool:
    """Run an event loop until a future is done, for a limited time. Returns whether it never will
    be: an exception has gone through ndb's code between sending a write and waiting for it."""
    # A wait that was interrupted may have lost the answer of an RPC, for which the loop waits.
    late = tasklets.Future("the longest wait is over")

    def give_up() -> None:
        late.set_result(None)
        eventloop.queue_rpc(_Bell(), lambda _: None)

    timer = threading.Timer(_PATIENCE, give_up)
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
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    ends = time.monotonic() + _PATIENCE_WITH_THREADS
    # The future may be done before it has the callback, so poll as well.
    while not future.done() and time.monotonic() < ends:
        done.wait(0.05)
    landed: bool = future.done()
    return landed


def wait_for_key(ndb_key: Any, flying: dict[Any, Any]) -> None:
    """Wait for a write of the same entity on this event loop: a second put builds on the first.

    Args:
        ndb_key: the key, or None.
        flying: the writes that are `in_flight` there.
    """
    while flying and ndb_key is not None:
        write = flying.get(ndb_key)
        if write is None or not wait_for(write):
            return
        if flying.get(ndb_key) is write:  # another one may have begun meanwhile
            del flying[ndb_key]


def wait_for_all(context: Any) -> None:
    """Wait for the writes that this thread has under way on the event loop of a context.

    Those of other threads may need this one to go on. Fencing keeps the two apart.
    """
    for write in tuple(in_flight(context).values()):
        if write.begun_by == threading.get_ident():
            wait_for(write)
