"""RPCs behind the gate: futures that carry plans out, and transactions that begin late.

A transaction begins with its first RPC, which saves one round trip for each:

    ndb                     here                           Datastore
    begin ────────────────▶ an id of ours
    look-up, by that id ──▶ look-up, new_transaction ────▶ begins it, and reads
                            notes Datastore's id ◀────────
    commit, by our id ────▶ commit, by Datastore's id ───▶

- A read while the first one is under way waits for that one's answer.
- A commit without any read before it is two RPCs, as ever: BeginTransaction, Commit.
  So a commit that is sent again has the same id, and Datastore applies it at most once.
  It is one RPC if its own mutations let it land only once (`Call.lands_once`).
- If the answer to a read that begins a transaction is lost, the read is sent again and
  begins another one. The first one ends by itself, within a minute.
- Without any answer there is nothing to roll back.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import grpc
from google.api_core import exceptions as errors
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.ndb import tasklets

from userlock.errors import UserLockError
from userlock.ndb.commits import Answer, Call, Result, Steps, note_unsent, roll_back
from userlock.ndb.context import Attempt, current_context
from userlock.ndb.wire import raw


class Running:
    """A plan while it is carried out: a gRPC future, as ndb uses them.

    Steps after the first run in gRPC's threads. `take` makes the response, or the error, of the
    plan's result, in the thread that first asks for it. `send` begins one RPC.
    """

    def __init__(
        self, steps: Steps, take: Callable[[Result], Any], send: Callable[[Call], Any]
    ) -> None:
        self._steps: Steps | None = steps
        self._take_result, self._send = take, send
        #: The calls of the present step that were sent, by number, and what `steps` gets next:
        #: the answers to them; empty before the first is sent.
        self._calls: dict[int, Any] = {}
        self._answers: Sequence[Answer | None] | None = None
        self._mutex = threading.Lock()
        self._done = False
        self._result: Any = None
        self._callbacks: list[Callable[[Any], object]] = []
        self._taken: tuple[Any, Exception | None] | None = None

    def advance(self, answers: Any = None) -> None:
        """Make the next step, the first one without answers."""
        steps = self._steps
        if steps is None:  # it was interrupted meanwhile
            return
        try:
            step, self._answers = steps.send(answers), ()
        except StopIteration as stop:
            self._result = stop.value
            self._finish()
        except Exception as error:
            self._taken = None, error
            self._finish()
        else:
            if isinstance(step, float):
                self._wait(step)
            else:
                self._send_all(step)

    def _wait(self, seconds: float) -> None:
        answers: list[Answer | None] = [None]
        self._answers, self._calls = answers, {}
        timer = threading.Timer(seconds, self._answered, (answers, 0, Answer(None, None)))
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # no thread can be started: go on without the pause
            self._answered(answers, 0, Answer(None, None))

    def _send_all(self, calls: list[Call]) -> None:
        answers: list[Answer | None] = [None] * len(calls)
        sent: dict[int, Any] = {}
        self._answers, self._calls = answers, sent
        for index, call in enumerate(calls):
            try:
                sent[index] = self._send(call)
            except Exception as error:
                self._answered(answers, index, Answer(None, error))
            else:
                sent[index].add_done_callback(functools.partial(self._answered, answers, index))

    def _answered(self, answers: Any, index: int, call: Any) -> None:
        answer = call if type(call) is Answer else _answer_of(call)
        with self._mutex:
            first, answers[index] = answers[index] is None, answer
            complete = first and None not in answers and self._steps is not None
        if complete:
            self.advance(answers)

    def interrupted(self, error: BaseException) -> None:
        """End with an exception, as of a signal, that came where it began: as soon as what was sent
        has been answered, and a transaction that it has begun is rolled back. Locks wait for that.
        """

        def send(call: Call) -> Any:
            if call.rpc != "rollback":
                raise unsent
            return begin(call)

        unsent = errors.FailedPrecondition("the write was interrupted")
        begin, self._send = self._send, send
        self._take_result = lambda _: (None, error)
        answers = self._answers
        if answers is None:
            self._finish()
        elif None not in answers:  # nothing is under way
            self.advance(answers or (Answer(None, unsent),))
        for index, answer in enumerate(answers or ()):
            if index in self._calls:
                answered = functools.partial(self._answered, answers, index)
                self._calls[index].add_done_callback(answered)
            elif answer is None:
                self._answered(answers, index, Answer(None, unsent))

    def _finish(self) -> None:
        with self._mutex:
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
            self._steps, self._calls = None, {}  # which keep this
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        with self._mutex:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def done(self) -> bool:
        return self._done

    def cancel(self) -> bool:
        cancelled = [call.cancel() for call in tuple(self._calls.values())]  # each of them
        return all(cancelled)

    def exception(self, timeout: float | None = None) -> Exception | None:
        return (self._taken or self._take(timeout))[1]

    def result(self, timeout: float | None = None) -> Any:
        response, error = self._taken or self._take(timeout)
        if error is not None:
            raise error
        return response

    def _take(self, timeout: float | None) -> tuple[Any, Exception | None]:
        if not self._done:  # ndb asks when it is done; other callers wait
            done = threading.Event()
            self.add_done_callback(lambda _: done.set())
            if not done.wait(timeout):
                raise grpc.FutureTimeoutError
        if self._taken is None:
            self._taken = self._take_result(self._result)
        return self._taken


def _answer_of(call: Any) -> Answer:
    try:
        error = call.exception()
    except grpc.FutureCancelledError:
        return Answer(None, errors.Cancelled("the call was cancelled"))
    if error is None:
        return Answer(raw(call.result()), None)
    if isinstance(error, grpc.RpcError):
        error = errors.from_grpc_error(error)
    return Answer(None, error)


_BeginRequest: Any = datastore_types.BeginTransactionRequest

#: The RPCs that name a transaction. Of the reads, the types of their answers.
_READS: dict[str, Any] = {
    "lookup": datastore_types.LookupResponse,
    "run_query": datastore_types.RunQueryResponse,
    "run_aggregation_query": datastore_types.RunAggregationQueryResponse,
    "runAggregationQuery": datastore_types.RunAggregationQueryResponse,
}
_ENDS: dict[str, Any] = {
    "commit": datastore_types.CommitResponse,
    "rollback": datastore_types.RollbackResponse,
}


class LateId(bytes):
    """The id of a transaction for ndb, until it is over. It keeps the transaction and its notes."""

    transaction: _Transaction
    attempt: Attempt


class _Transaction:
    """A transaction that may not have begun. For any thread."""

    def __init__(self, *, read_only: bool) -> None:
        self.read_only = read_only
        self.mutex = threading.Lock()
        #: Datastore's id of it; empty before the answer that tells it.
        self.id = b""
        self.call: Any = None  # the call that begins it, or has begun it
        self.failed: Exception | None = None  # the reason for which it cannot begin any more

    @property
    def is_untouched(self) -> bool:
        return self.call is None and self.failed is None

    def put_options(self, options: Any) -> None:
        (options.read_only if self.read_only else options.read_write).SetInParent()

    def begin(self, stub: Any, sent: Any, options: Any) -> Any:
        """Return the call that begins it, or has begun it: a new one if there is none."""
        with self.mutex:
            if self.call is None:
                request = _BeginRequest.pb(_BeginRequest())
                request.project_id, request.database_id = sent.project_id, sent.database_id
                self.put_options(request.transaction_options)
                wrapped = _BeginRequest.wrap(request)
                self.call = stub.begin_transaction.future(wrapped, **options)
            call = self.call
        call.add_done_callback(self.answered)  # before the steps get its answer
        return call

    def answered(self, call: Any) -> None:
        """Note the id that is in the answer of the call that begins it."""
        with self.mutex:
            if self.call is not call or self.id:
                return
            with contextlib.suppress(Exception):  # it was cancelled
                if call.exception() is None:
                    self.id = bytes(raw(call.result()).transaction)
                    if not self.id:  # what was read is in no transaction
                        self.failed = errors.FailedPrecondition(
                            "Datastore has begun a transaction without an id"
                        )
            if not self.id:
                self.call = None


_transactions: weakref.WeakValueDictionary[bytes, _Transaction] = weakref.WeakValueDictionary()


def begin_late(*, read_only: bool) -> LateId:
    """Return an id for a transaction that will begin with its first RPC."""
    late = LateId(secrets.token_bytes(16))
    late.transaction = _transactions[bytes(late)] = _Transaction(read_only=read_only)
    late.attempt = Attempt()
    return late


def begin_call(
    stub: Any,
    name: str,
    request: Any,
    args: Any,
    options: Any,
    *,
    lands_once: bool = False,
    waits: bool = False,
) -> Any:
    """Begin an RPC of a stub, and its transaction if that has not begun. Returns a gRPC future;
    with `waits`, the answer."""
    sent: Any = getattr(request, "_pb", request)  # as `raw` does
    method, named, reads = getattr(stub, name), b"", name in _READS
    if reads:
        named = sent.read_options.transaction
    elif name in _ENDS:
        named = sent.transaction
    transaction = _transactions.get(named) if named else None
    if transaction is None:
        begin = method if waits else method.future  # the first form takes no thread
        return begin(request, *args, **options)
    if waits:
        return begin_call(stub, name, request, args, options, lands_once=lands_once).result()

    def send() -> Any:
        changed = type(sent)()
        changed.CopyFrom(sent)
        part = changed.read_options if reads else changed
        if transaction.id:
            part.transaction = transaction.id
        elif reads:  # begins it
            transaction.put_options(part.new_transaction)
        else:  # a commit that is all of it
            transaction.put_options(part.single_use_transaction)
        wrapped = changed if sent is request else type(request).wrap(changed)
        return method.future(wrapped, *args, **options)

    rolls_back = name == "rollback"
    if (transaction.id and not rolls_back) or (lands_once and transaction.is_untouched):
        return send()
    if reads:
        with transaction.mutex:
            first = transaction.is_untouched
            if first:
                call = transaction.call = send()
        if first:
            call.add_done_callback(transaction.answered)
            return call

    def step(call: Call) -> Any:
        return send() if call.rpc == name else transaction.begin(stub, sent, options)

    running = Running(_steps(transaction, name), functools.partial(_take, name), step)
    running.advance()
    return running


def interrupted(error: BaseException) -> Any:
    """Return the call of an RPC that an exception, as of a signal, has interrupted when it began.

    It may have been sent, so its reply counts as lost. The exception is raised on the next turn of
    the event loop, out of the wait: from here it would reach ndb's retries, which run a transaction
    again that may wait for the locks of this one. An error of the call itself is raised here.
    """
    own = isinstance(error, (errors.GoogleAPIError, grpc.RpcError, UserLockError))
    if own or current_context() is None:  # in gRPC's threads, which no signal interrupts
        raise error

    def interrupt(_: object) -> None:
        raise error

    tasklets.sleep(0).add_done_callback(interrupt)
    lost: Future[None] = Future()
    lost.set_exception(errors.ServiceUnavailable("the call was interrupted"))
    return lost


def _steps(transaction: _Transaction, name: str) -> Steps:
    """Wait until the transaction has begun, or begin it, and make the call."""
    begin = [Call("begin", None)]
    if transaction.call is not None and not transaction.id:
        yield begin  # its error is its own caller's
    if name == "rollback":
        if transaction.id:
            yield from roll_back(None)
        else:
            transaction.failed = errors.InvalidArgument("the transaction was rolled back")
        return Result(datastore_types.RollbackResponse.pb()(), {}, {}, None)
    error = transaction.failed
    if error is None and not transaction.id:
        ((_, error),) = yield begin
        error = error or transaction.failed
    if error is not None:
        note_unsent(error)
        return Result(None, {}, {}, error)
    ((response, error),) = yield [Call(name, None)]
    return Result(response, {}, {}, error)


def _take(name: str, result: Result) -> tuple[Any, Exception | None]:
    if result.error is not None:
        return None, result.error
    return (_READS.get(name) or _ENDS[name]).wrap(result.response), None
