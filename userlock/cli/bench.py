"""`userlock bench`: what the lock costs from here."""

from __future__ import annotations

import argparse
import secrets
import threading
from collections.abc import Callable
from typing import Any

from userlock.cli.command import FINE, Setting, seconds, unreachable
from userlock.clock import Clock
from userlock.errors import LockError, LockServiceUnavailable
from userlock.events import Contended, Event, Listeners
from userlock.lock.lease import Lease
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.stores.trial import Latency, latency_of, milliseconds, percentile

NAME = "bench"
SUMMARY = "measures the lock from here: alone, and handed from one thread to another"
NO_MEANS = ""
DETAILS = """\
Takes locks of its own, with random ids, for a few seconds, one at a time. Measures;
judges nothing (`userlock doctor` does). A hand-off is counted from the call that
releases the lock to the moment at which the other thread has it.
"""

_HOLD_SECONDS = 0.01
_LEASE_SECONDS = 10.0
_WAIT_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=seconds, default=3.0, metavar="N", help="how long (default: 3)"
    )


def run(options: argparse.Namespace, setting: Setting) -> int:
    service = setting.service()
    clock = setting.console.clock
    try:
        trip = latency_of(service.store, clock=clock, most=5000, most_seconds=options.seconds / 5)
        alone = uncontended(service, options.seconds * 2 / 5)
        handed = _Handoff(service).measure(options.seconds * 2 / 5)
    except StoreUnavailable as trouble:
        raise unreachable(trouble.reason) from trouble
    except LockServiceUnavailable as error:
        raise unreachable(error.reason) from error
    figures = {"round_trip": trip, "uncontended": alone, "hand_off": handed}
    if setting.json:
        document: dict[str, Any] = {"store": setting.url, "hold_ms": _HOLD_SECONDS * 1000}
        setting.console.document({**document, **{k: _facts(v) for k, v in figures.items()}})
        return FINE
    setting.console.say(
        "\n".join(
            [
                f"from here to {setting.url}",
                "                          median        p99   measured",
                _line("round trip", trip, "looks at a lock"),
                _line("acquire and release", alone, "locks that nobody else wants"),
                _line("hand-off", handed, f"between two threads, held {_HOLD_SECONDS * 1e3:g} ms"),
            ]
        )
    )
    return FINE


def _facts(latency: Latency) -> dict[str, float]:
    return {
        "p50_ms": latency.p50 * 1000,
        "p99_ms": latency.p99 * 1000,
        "measured": latency.rounds,
    }


def _line(name: str, latency: Latency, what: str) -> str:
    median, worst = milliseconds(latency.p50), milliseconds(latency.p99)
    return f"  {name:20} {median:>10} {worst:>10}   {latency.rounds:,} {what}"


def _own_lock_id() -> str:
    return f"userlock-bench-{secrets.token_hex(8)}"


def uncontended(service: LockService, most_seconds: float) -> Latency:
    """Take and give back a lock that nobody else wants."""
    clock, lock_id = service.clock, _own_lock_id()
    times: list[float] = []
    ends = clock.now() + most_seconds
    while clock.now() < ends or not times:
        began = clock.now()
        lease = _taken(service, lock_id)
        service.release(lease)
        times.append(clock.now() - began)
    return Latency(len(times), percentile(times, 0.5), percentile(times, 0.99))


def _taken(service: LockService, lock_id: str) -> Lease:
    return service.acquire(
        lock_id,
        wait_timeout=_WAIT_SECONDS,
        lock_timeout=_LEASE_SECONDS,
        request="userlock bench",
    )


class _Handoff:
    """Two threads that want one lock by turns.

    One holds it until the other stands in line, and a little longer, as a
    request would; then it releases, and the time runs until the other has it.
    """

    def __init__(self, service: LockService) -> None:
        # On the same store, so on the same kind of connections.
        self._services = [
            LockService(
                service.store,
                outage="fail",
                listeners=Listeners([self._see]),
                clock=service.clock,
            )
            for _ in range(2)
        ]
        self._clock: Clock = service.clock
        self._lock_id = _own_lock_id()
        self._waits = threading.Event()
        self._released_at: float | None = None
        self._times: list[float] = []
        self._stop = threading.Event()
        self._errors: list[BaseException] = []

    def measure(self, most_seconds: float) -> Latency:
        ends = self._clock.now() + most_seconds
        threads = [
            threading.Thread(target=self._guarded, args=(self._player(one, ends),), daemon=True)
            for one in self._services
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._stop.set()
        if self._errors:
            raise self._errors[0]
        times = self._times or [float("nan")]
        return Latency(len(self._times), percentile(times, 0.5), percentile(times, 0.99))

    def _see(self, event: Event) -> None:
        if isinstance(event, Contended):
            self._waits.set()

    def _guarded(self, play: Callable[[], None]) -> None:
        try:
            play()
        except LockError as error:
            self._errors.append(error)
            self._stop.set()

    def _player(self, service: LockService, ends: float) -> Callable[[], None]:
        def play() -> None:
            while not self._stop.is_set():
                lease = _taken(service, self._lock_id)
                now = self._clock.now()
                try:
                    if self._released_at is not None:
                        self._times.append(now - self._released_at)
                        self._released_at = None
                    if now >= ends and self._times:
                        self._stop.set()
                    if not self._stop.is_set():
                        self._waits.wait(_WAIT_SECONDS)
                        self._clock.sleep(_HOLD_SECONDS)
                finally:
                    self._waits.clear()
                    self._released_at = self._clock.now()
                    service.release(lease)

        return play
