"""One thread per process that does what is due for all locks: renewals, confirmations.

It knows nothing of leases. A *ward* says when it is next to be looked after;
the renewal thread calls it then. The thread is started with the first ward, is a
daemon, and does not survive a fork: the child's own first ward starts the
child's own, and the parent's wards stay the parent's.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from userlock.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

#: After an error that nobody foresaw, a ward is looked after again in so many seconds.
_AFTER_ERROR_SECONDS = 1.0
#: How many are looked after at once, at most.
_MOST_TOGETHER = 100
#: So many outdated entries are kept at any rate, rather than sorted out.
_FEW = 64


class Task(Protocol):
    """One object that the renewal thread looks after. Hashed by identity."""

    def run(self, now: float) -> float | None:
        """Do what is due at `now`; when to be called again, or None for never."""
        ...


class BatchedTask(Task, Protocol):
    """One that is cheaper to look after together with others.

    Attributes:
        batch_key: the same for all that can be; hashed and compared by identity.
    """

    batch_key: object

    def run_with(self, others: Sequence[Any], now: float) -> list[float | None]:
        """`beat` for this one and those others of its batch_key that are due; in this order."""
        ...


class RenewalThread:
    """Calls wards when they are due. Thread-safe.

    Wards are kept by weak references: what nobody else keeps is forgotten.

    Args:
        clock: for the time.
        threaded: whether to run a thread; without, whoever owns the clock calls `beat`.
    """

    def __init__(self, clock: Clock, *, threaded: bool) -> None:
        self._clock = clock
        self._threaded = threaded
        self._order = itertools.count()
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        #: When, which entry, and whom. An entry that is not its ward's latest means nothing.
        self._due: list[tuple[float, int, weakref.ref[Task]]] = []
        self._latest: weakref.WeakKeyDictionary[Task, int] = weakref.WeakKeyDictionary()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Return the number of objects that are looked after."""
        return len(self._latest)

    @property
    def running(self) -> bool:
        """Return whether the thread runs. It starts with the first object to look after."""
        return self._thread is not None and self._thread.is_alive()

    def schedule(self, ward: Task, due: float) -> None:
        """Call `ward.beat` at `due`, on this heart's clock, and when it says from then on.

        For a ward that is looked after already: at `due` instead of when it was.
        """
        with self._changed:
            self._put_down(ward, due)
            if not self._threaded:
                return
            if not self.running:
                self._start_thread()
            elif self._due[0][0] == due:
                self._changed.notify()

    def _put_down(self, ward: Task, due: float) -> None:
        if len(self._due) > 2 * len(self._latest) + _FEW:
            # Most of it is about wards that have gone: short locks with long leases.
            self._due = [entry for entry in self._due if self._is_latest(entry)]
            heapq.heapify(self._due)
        order = self._latest[ward] = next(self._order)
        heapq.heappush(self._due, (due, order, weakref.ref(ward)))

    def _is_latest(self, entry: tuple[float, int, weakref.ref[Task]]) -> bool:
        ward = entry[2]()
        return ward is not None and self._latest.get(ward) == entry[1]

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="userlock-renewal", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # Too many threads, or the interpreter is shutting down. The lock
            # is held all the same, for as long as its lease lasts.
            log.exception("no thread could be started: leases are not renewed")
        else:
            self._thread = thread

    def run_due(self) -> float | None:
        """Look after everyone who is due; when the next one will be, None if there is nobody."""
        while True:
            with self._changed:
                due = self._take_due()
                if not due:
                    return self._due[0][0] if self._due else None
            again = self._call([ward for ward, _ in due])
            with self._changed:
                for (ward, order), when in zip(due, again, strict=True):
                    if self._latest.get(ward) == order:  # not put down anew meanwhile
                        if when is None:
                            del self._latest[ward]
                        else:
                            self._put_down(ward, when)
            del due, ward  # or this frame would keep them

    def _take_due(self) -> list[tuple[Task, int]]:
        """Return the next one that is due, and those of its batch that are due as well."""
        due: list[tuple[Task, int]] = []
        batch_key = None
        now = self._clock.now()
        while self._due and self._due[0][0] <= now and len(due) < _MOST_TOGETHER:
            _, order, reference = entry = heapq.heappop(self._due)
            ward = reference()
            if ward is None or self._latest.get(ward) != order:
                continue
            if not due:
                batch_key = getattr(ward, "batch_key", None)
            elif getattr(ward, "batch_key", None) is not batch_key:
                heapq.heappush(self._due, entry)
                break
            due.append((ward, order))
            if batch_key is None:
                break
        return due

    def _call(self, wards: list[Any]) -> list[float | None]:
        first, *others = wards
        now = self._clock.now()
        try:
            return first.run_with(others, now) if others else [first.run(now)]
        except BaseException as error:
            # In the thread also what is meant to end a thread, from a callback:
            # all the other wards are in its care as well.
            if not self._threaded and not isinstance(error, Exception):
                raise
            with contextlib.suppress(Exception):
                log.exception("a lock could not be looked after; trying again")
            return [self._clock.now() + _AFTER_ERROR_SECONDS] * len(wards)

    def _run(self) -> None:
        while True:
            self.run_due()
            with self._changed:
                wait = self._due[0][0] - self._clock.now() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)


_all: weakref.WeakSet[RenewalThread] = weakref.WeakSet()


def _after_fork() -> None:
    for renewals in list(_all):
        renewals._begin()


os.register_at_fork(after_in_child=_after_fork)

#: The one of this process.
SYSTEM_RENEWALS = RenewalThread(SYSTEM_CLOCK, threaded=True)
