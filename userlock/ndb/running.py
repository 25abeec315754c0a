"""Carries a plan out, in front of gRPC's futures. Knows nothing of ndb."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import grpc
from google.api_core import exceptions as core_exceptions

from userlock.ndb.commits import Answer, Call, Wait, all_landed


class Plan(Protocol):
    """The steps of one request."""

    def simple_request(self) -> Any:
        """Return the one commit that sends it all; None where it takes more."""
        ...

    def steps(self, first: Answer | None) -> Any:
        """Return the steps, as of `commits.PlainCommit`."""
        ...

    def take_landed(self, response: Any) -> Any:
        """Return the answer of a simple request of which all has landed."""
        ...

    def take(self, result: Any) -> tuple[Any, Exception | None]:
        """Return the answer of the steps' result, or the error."""
        ...


class Running:
    """A plan while it is carried out: what ndb takes for a gRPC future.

    The steps after the first run in gRPC's threads; the result is taken in the
    thread that asks for it first.

    Args:
        plan: what is to be done.
        send: begins one RPC, and gives its future.
    """

    def __init__(self, plan: Plan, send: Callable[[Call], Any]) -> None:
        self._plan = plan
        self._send = send
        self._steps: Any = None
        self._calls: list[Any] = []
        self._mutex = threading.Lock()
        self._done = False
        self._callbacks: list[Callable[[Any], object]] = []
        #: The answer, where nothing has to be said of it; else the plan's result.
        self._landed: Any = None
        self._result: Any = None
        self._taken: tuple[Any, Exception | None] | None = None
        request = plan.simple_request()
        if request is None:
            self._begin(None)
        else:
            self._send_first(Call("commit", request))

    # --- the steps --------------------------------------------------------------------------

    def _send_first(self, call: Call) -> None:
        """Nearly all go well: nothing is made ready for the others beforehand."""
        try:
            future = self._send(call)
        except Exception as error:
            self._begin(Answer(None, error))
        else:
            self._calls.append(future)
            future.add_done_callback(self._first_answered)

    def _first_answered(self, call: Any) -> None:
        answer = _answer_of(call)
        if answer.error is None and all_landed(answer.response):
            self._landed = answer.response
            self._finish()
        else:
            self._begin(answer)

    def _begin(self, first: Answer | None) -> None:
        self._steps = self._plan.steps(first)
        self._advance(None)

    def _advance(self, answers: list[Answer] | None) -> None:
        try:
            step = self._steps.send(answers)
        except StopIteration as stop:
            self._result = stop.value
            self._finish()
        except Exception as error:
            self._taken = None, error
            self._finish()
        else:
            if isinstance(step, Wait):
                timer = threading.Timer(step.seconds, self._advance, ([],))
                timer.daemon = True
                try:
                    timer.start()
                except RuntimeError:  # no thread can be started: then without the pause
                    self._advance([])
            else:
                self._send_all(step)

    def _send_all(self, calls: list[Call]) -> None:
        answers: dict[int, Answer] = {}

        def answered(index: int, answer: Answer) -> None:
            with self._mutex:
                answers[index] = answer
                last = len(answers) == len(calls)
            if last:
                self._advance([answers[each] for each in range(len(calls))])

        for index, call in enumerate(calls):
            try:
                future = self._send(call)
            except Exception as error:
                answered(index, Answer(None, error))
                continue
            self._calls.append(future)
            future.add_done_callback(lambda done, index=index: answered(index, _answer_of(done)))

    def _finish(self) -> None:
        with self._mutex:
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
            self._steps, self._calls = None, []  # which keep this
        for callback in callbacks:
            callback(self)

    # --- what ndb asks of it ----------------------------------------------------------------

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        with self._mutex:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def done(self) -> bool:
        return self._done

    def cancel(self) -> bool:
        cancelled = [call.cancel() for call in tuple(self._calls)]  # each of them
        return all(cancelled)

    def exception(self, timeout: float | None = None) -> Exception | None:
        return self._take(timeout)[1]

    def result(self, timeout: float | None = None) -> Any:
        response, error = self._take(timeout)
        if error is not None:
            raise error
        return response

    def _take(self, timeout: float | None) -> tuple[Any, Exception | None]:
        if not self._done:  # ndb asks when it is done; others wait
            done = threading.Event()
            self.add_done_callback(lambda _: done.set())
            if not done.wait(timeout):
                raise grpc.FutureTimeoutError
        if self._taken is None:
            if self._landed is not None:
                self._taken = self._plan.take_landed(self._landed), None
            else:
                self._taken = self._plan.take(self._result)
        return self._taken


def _answer_of(call: Any) -> Answer:
    """Return what has become of a gRPC call, its error as google.api_core has it."""
    try:
        error = call.exception()
    except grpc.FutureCancelledError:
        return Answer(None, core_exceptions.Cancelled("the call was cancelled"))
    if error is None:
        return Answer(raw(call.result()), None)
    if isinstance(error, grpc.RpcError):
        error = core_exceptions.from_grpc_error(error)
    return Answer(None, error)


def raw(message: Any) -> Any:
    """Return the protobuf message within one of google-cloud-datastore's."""
    return getattr(message, "_pb", message)
