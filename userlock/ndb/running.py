"""Futures in front of gRPC's, such as one that carries a plan out. Knows nothing of ndb."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import grpc
from google.api_core import exceptions as core_exceptions

from userlock.ndb.commits import Answer, Call, Result, Steps, Wait
from userlock.ndb.wire import raw


class Running:
    """A plan while it is carried out: a gRPC future, as ndb uses them.

    Steps after the first run in gRPC's threads. `take` makes the response, or the error, of the
    plan's result, in the thread that first asks for it. `send` begins one RPC.
    """

    def __init__(
        self,
        steps: Steps,
        take: Callable[[Result], tuple[Any, Exception | None]],
        send: Callable[[Call], Any],
    ) -> None:
        self._steps: Steps | None = steps
        self._take_result = take
        self._send = send
        self._calls: list[Any] = []
        self._mutex = threading.Lock()
        self._done = False
        self._callbacks: list[Callable[[Any], object]] = []
        self._result: Any = None
        self._taken: tuple[Any, Exception | None] | None = None

    # --- the steps --------------------------------------------------------------------------

    def advance(self, answers: Any = None) -> None:
        """Make the next step, the first one without answers."""
        assert self._steps is not None
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
                self._wait(step.seconds)
            else:
                self._send_all(step)

    def _wait(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self.advance, ([],))
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # no thread can be started: go on without the pause
            self.advance([])

    def _send_all(self, calls: list[Call]) -> None:
        answers: list[Answer | None] = [None] * len(calls)
        for index, call in enumerate(calls):
            try:
                future = self._send(call)
            except Exception as error:
                self._answered(answers, index, Answer(None, error))
                continue
            self._calls.append(future)
            future.add_done_callback(functools.partial(self._answered, answers, index))

    def _answered(self, answers: list[Answer | None], index: int, call: Any) -> None:
        answer = call if type(call) is Answer else _answer_of(call)
        with self._mutex:
            answers[index] = answer
            complete = None not in answers
        if complete:
            self.advance(answers)

    def _finish(self) -> None:
        with self._mutex:
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
            self._steps, self._calls = None, []  # which keep this
        for callback in callbacks:
            callback(self)

    # --- the future -------------------------------------------------------------------------

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
    """Return the outcome of a gRPC call, with its error as one of google.api_core."""
    try:
        error = call.exception()
    except grpc.FutureCancelledError:
        return Answer(None, core_exceptions.Cancelled("the call was cancelled"))
    if error is None:
        return Answer(raw(call.result()), None)
    if isinstance(error, grpc.RpcError):
        error = core_exceptions.from_grpc_error(error)
    return Answer(None, error)


class WrappedCall:
    """A gRPC future in front of another one."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._call.add_done_callback(lambda _: callback(self))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)
