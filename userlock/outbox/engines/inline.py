"""An engine of threads in this process, for tests and for `make run`. Not for production.

`inline://` runs jobs in four threads; `inline://?threads=0` keeps messages until `run_pending()`.
A message is lost with the process: the relay sends another.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from urllib.parse import parse_qs, urlsplit

from userlock.arguments import check_count
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.fork import reset_in_child
from userlock.outbox.engines import EngineError, Wake

log = logging.getLogger(__name__)

_MOST_WAITING, _MOST_THREADS = 100_000, 64


class InlineEngine:
    """Threads of this process."""

    def __init__(self, threads: int = 4, clock: Clock = SYSTEM_CLOCK) -> None:
        self._count = check_count("threads", threads, least=0, most=_MOST_THREADS)
        self._clock = clock
        self._numbers = itertools.count()
        self._deliver: Callable[[str], object] = lambda key: None
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, str]] = []
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._closed = False

    def connect(self, deliver: Callable[[str], object]) -> None:
        self._deliver = deliver

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        with self._changed:
            if self._closed:
                return [EngineError("the engine is closed")] * len(messages)
            if len(self._waiting) + len(messages) > _MOST_WAITING:
                return [EngineError("too many messages wait")] * len(messages)
            now = self._clock.now()
            for each in messages:
                heapq.heappush(self._waiting, (now + each.delay, next(self._numbers), each.key))
            while len(self._threads) < self._count:
                thread = threading.Thread(target=self._serve, name="userlock-job", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()
        return [None] * len(messages)

    def run_pending(self, *, most: int = 1000) -> int:
        """Deliver the messages that are due, in this thread; return how many."""
        for done in range(most):
            with self._changed:
                if not self._is_due():
                    return done
                key = heapq.heappop(self._waiting)[2]
            self._run(key)
        return most

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until no message is due or running; return whether that came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running and not self._is_due(), timeout)

    def close(self) -> None:
        """Forget all messages, and end the threads after the jobs that they run."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            threads, self._threads = self._threads, []
            self._changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _is_due(self) -> bool:
        return bool(self._waiting) and self._waiting[0][0] <= self._clock.now()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._is_due():
                    left = self._waiting[0][0] - self._clock.now() if self._waiting else None
                    self._changed.wait(left)
                if self._closed:
                    return
                key = heapq.heappop(self._waiting)[2]
                self._running += 1
            try:
                self._run(key)
            except BaseException:  # such as a time-out of gevent's: the others are to run
                log.exception("a job has ended its run; the relay will send it again")
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def _run(self, key: str) -> None:
        try:
            self._deliver(key)
        except Exception:
            log.exception("a job could not be run; the relay will send it again")


def open_url(url: str) -> InlineEngine:
    parts = urlsplit(url)
    options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    if parts.netloc or parts.path.strip("/") or options.keys() - {"threads"}:
        raise ValueError("an inline engine is 'inline://' or 'inline://?threads=4'")
    threads, *more = options.get("threads", ["4"])
    if more or not threads.isdecimal():
        raise ValueError(f"inline: threads must be a number, not {threads[:20]!r}")
    return InlineEngine(int(threads))
