"""The job that the running code belongs to, and its time limit."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextvars import ContextVar

from userlock.arguments import check_seconds
from userlock.errors import JobTimeLimit

#: The longest time before a job runs, in seconds.
MOST_DELAY = 30 * 86_400


@dataclasses.dataclass(frozen=True, slots=True)
class JobContext:
    """A run of a job.

    Attributes:
        job_id: the job's id, as `StagedJob.key`; the same in each attempt, so it serves as an
            idempotency key for other services.
        name: the registered name.
        owner: the lock id under which it runs; None for a job without an owner.
        attempt: its number, from 1 on.
    """

    job_id: str
    name: str
    owner: str | None
    attempt: int


class RetryAfter(Exception):
    """Raised by a job that has failed: it runs again after so many seconds, at most 30 days.

    Spends an attempt, as any failure.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        self.seconds = check_seconds("RetryAfter", seconds, least=0, most=MOST_DELAY)
        super().__init__(reason or f"to run again after {seconds:g} s")


class _TimeIsOver(BaseException):
    """Ends a job; no handler of the job's own stops it."""


_current: ContextVar[JobContext | None] = ContextVar("userlock_job", default=None)


def current_job() -> JobContext | None:
    """Return the job that the running code belongs to; None outside of jobs."""
    return _current.get()


@contextlib.contextmanager
def running(job: JobContext, time_limit: float | None) -> Iterator[None]:
    """Run a block as a job.

    Raises:
        JobTimeLimit: after `time_limit` seconds the block is ended at its next line, handlers of
            `Exception` notwithstanding; a call of C that takes longer comes to its end before.
    """
    token = _current.set(job)
    try:
        with contextlib.nullcontext() if time_limit is None else _limited(time_limit):
            yield
    except _TimeIsOver as end:
        text = f"job {job.name} has taken more than {time_limit:g} s"
        error = JobTimeLimit(text, job=job.name)
        raise error.with_traceback(end.__traceback__) from None  # which shows where
    finally:
        _current.reset(token)


def _loses_replies(thread: int) -> bool:
    """Return whether an exception where a thread is now could lose the reply to a call.

    That is so anywhere inside gRPC, and while code of ndb or of the model layer runs: ndb's event
    loop waits for ever for a reply that was taken off its queue and lost. Where it waits for the
    queue itself, other code runs, and nothing is lost.
    """
    frame = sys._current_frames().get(thread)
    if frame is not None and _module(frame).startswith(("google.cloud.ndb.", "userlock.ndb.")):
        return True
    while frame is not None and not _module(frame).startswith("grpc."):
        frame = frame.f_back
    return frame is not None


def _module(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    thread, mutex, over = threading.get_ident(), threading.Lock(), [False]

    raise_in, error = ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.py_object(_TimeIsOver)
    number = ctypes.c_ulong(thread)

    def interrupt() -> None:
        while True:
            with mutex:
                if over[0]:
                    return
                # While this thread starts another, Python 3.11 would raise it there, and this one
                # would wait for ever. (In few steps: other threads may run between two.)
                if not _loses_replies(thread) and not getattr(threading, "_limbo", None):
                    raise_in(number, error)
                    return
            time.sleep(0.001)

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        try:
            with mutex:
                over[0] = True
            # One that is on its way comes at the next jump or call. It is not taken back: Python
            # 3.11 would look for it for ever, in all threads.
            for _ in range(2):
                pass
        except _TimeIsOver:  # too late: the block has ended
            pass
        timer.cancel()
