"""One thread per process that runs what is due for all locks: renewals, confirmations.

It knows nothing of leases. A *task* is any object, hashed by identity, whose `_when_due(now)` does
what is due and returns when to be called again, None for never. The thread is a daemon and starts
with the first task. It does not survive a fork: the first task of the child starts a thread of the
child's own, and the parent's tasks stay in the parent.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import weakref
from typing import Any

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.fork import reset_in_child
from userlock.waits import with_mutex

log = logging.getLogger(__name__)

#: A task that failed unexpectedly is run again after this time, in seconds.
_AFTER_ERROR_SECONDS = 1.0


class RenewalThread:
    """Runs tasks when they are due. Thread-safe. A task that nothing else refers to is dropped.

    Without a thread (`threaded`), the owner of the clock calls `run_due`.
    """

    def __init__(self, clock: Clock, *, threaded: bool) -> None:
        self._clock = clock
        self._threaded = threaded
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.Condition()
        self._due: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._thread: threading.Thread | None = None
        #: When the thread will look again by itself.
        self._wakes_at = math.inf

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self._due)

    def __contains__(self, task: Any) -> bool:
        """Return whether a task is scheduled; one that runs just now is not."""
        return task in self._due

    @property
    def running(self) -> bool:
        """Return whether the thread runs. It starts with the first task."""
        return self._thread is not None and self._thread.is_alive()

    @with_mutex
    def schedule(self, task: Any, due: float) -> None:
        """Run `task` at `due`, on this thread's clock, not before; later when it says so."""
        self._due[task] = due
        if self._threaded and not self.running:
            self._start_thread()
        elif due < self._wakes_at:
            self._mutex.notify()

    def _start_thread(self) -> None:
        if sys.is_finalizing():  # Python 3.11 would wait for ever; the leases end by themselves
            return
        thread = threading.Thread(target=self._run, name="userlock-renewal", daemon=True)
        self._thread = thread  # before `start`, which waits for it, and may be interrupted there
        try:
            thread.start()
        except RuntimeError:
            # Too many threads, or the interpreter is shutting down. The lock
            # is held all the same, for as long as its lease lasts.
            log.exception("no thread could be started: leases are not renewed")

    def run_due(self) -> float | None:
        """Run all tasks that are due; return the time of the next one, None if there is none."""
        while True:
            with self._mutex:
                task, due = self._first()
                if task is None or due > self._clock.now():
                    return None if task is None else due
                self._due.pop(task, None)
            again = self._call(task)
            if again is not None:
                with self._mutex:
                    self._due.setdefault(task, again)  # or as it was scheduled meanwhile
            del task  # or this frame would keep it

    def _first(self) -> tuple[Any, float]:
        """Return the task that is due first, and when. A process has a handful of them."""
        first, earliest = None, math.inf
        # Over a copy: the garbage collector may release a lock here, and so schedule a task.
        for reference in self._due.keyrefs():
            task = reference()
            due = math.inf if task is None else self._due.get(task, math.inf)
            if due < earliest:
                first, earliest = task, due
        return first, earliest

    def _call(self, task: Any) -> float | None:
        try:
            again: float | None = task._when_due(self._clock.now())
            return again
        except BaseException as error:
            # In the thread also an error that is meant to end a thread, from a
            # callback: it must not end the renewals of all other locks.
            if not self._threaded and not isinstance(error, Exception):
                raise
            with contextlib.suppress(Exception):
                log.exception("a renewal failed; trying again")
            return self._clock.now() + _AFTER_ERROR_SECONDS

    def _run(self) -> None:
        while True:
            self.run_due()
            with self._mutex:
                if self._thread is not threading.current_thread():
                    return  # another one was started in its place
                self._wakes_at = self._first()[1]
                wait = self._wakes_at - self._clock.now()
                if wait > 0:
                    self._mutex.wait(None if wait == math.inf else wait)
                self._wakes_at = -math.inf


#: The renewal thread of this process.
SYSTEM_RENEWALS = RenewalThread(SYSTEM_CLOCK, threaded=True)
