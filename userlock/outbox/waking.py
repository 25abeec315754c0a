"""Asks engines to run jobs: bounded, behind a breaker, and never to the caller's harm."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from userlock.clock import Clock
from userlock.fork import reset_in_child
from userlock.lock.breaker import CircuitBreaker
from userlock.outbox.engines import Engine, EngineError, Wake

log = logging.getLogger(__name__)

#: Of the fast path, which delays a request. In seconds.
FAST_SECONDS = 0.3


class Due(NamedTuple):
    """A job to be run: its key, the tier, and in how many seconds."""

    key: Any
    tier: str
    delay: float = 0.0


class Waker:
    """The engines of an outbox. Thread-safe.

    `engines`: each once. `failed`: the messages of this process that no engine has taken; the relay
    sends them again.
    """

    def __init__(self, engines: Mapping[str, Engine], clock: Clock) -> None:
        self._engines = dict(engines)
        self.engines = list({id(each): each for each in engines.values()}.values())
        self._clock = clock
        self._breakers = {
            tier: CircuitBreaker(clock, most_pause_seconds=30.0) for tier in self._engines
        }
        self.failed = 0
        self._new_mutex()
        reset_in_child(self._new_mutex)  # another thread may have it at a fork

    def _new_mutex(self) -> None:
        self._mutex = threading.Lock()

    def knows(self, tier: str) -> bool:
        return tier in self._engines

    def wake(self, jobs: Iterable[Due], *, timeout: float = FAST_SECONDS) -> set[Any]:
        """Ask for at most 100 jobs; return the keys of those that were taken. Never raises."""
        by_tier: dict[str, list[Due]] = {}
        for job in jobs:
            tier = job.tier if job.tier in self._engines else ""
            by_tier.setdefault(tier, []).append(job)
        ends = self._clock.now() + timeout
        taken: set[Any] = set()
        for tier, of_tier in by_tier.items():
            took = self._send(tier, of_tier, ends - self._clock.now())
            taken.update(took)
            if len(took) < len(of_tier):
                with self._mutex:
                    self.failed += len(of_tier) - len(took)
        return taken

    def _send(self, tier: str, jobs: Sequence[Due], timeout: float) -> Sequence[Any]:
        breaker = self._breakers[tier]
        if timeout <= 0 or not breaker.allows():
            return ()
        began = self._clock.now()
        messages = [Wake(text_of(job.key), secrets.token_hex(16), job.delay) for job in jobs]
        try:
            errors = self._engines[tier].wake(messages, timeout)
        except Exception as error:
            # An engine's own failure must not reach a request that has done its work.
            log.exception("the engine of tier %r failed", tier)
            errors = [EngineError(str(error))] * len(jobs)
        taken = [job.key for job, error in zip(jobs, errors, strict=True) if error is None]
        if taken:
            breaker.succeeded()  # it answers: what it refuses is these messages
        if len(taken) < len(jobs):
            failure = next(filter(None, errors))
            if not taken:
                cost = max(self._clock.now() - began, 0.01)
                breaker.failed(cost_seconds=cost, reason=str(failure))
            log.warning(
                "the engine of tier %r has not taken %d of %d jobs, which the relay will send: %s",
                tier,
                len(jobs) - len(taken),
                len(jobs),
                failure,
            )
        return taken

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


def text_of(key: Any) -> str:
    """Return a row's key as the text in a message."""
    return str(key.urlsafe().decode())
