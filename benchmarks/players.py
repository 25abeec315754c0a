"""The two processes of the hand-off benchmark.

They hold one lock in turn. Whoever has it says so to the other, who begins to
wait at once; then it works for the time of a hold, and gives the lock back:

    A  has the lock ── "mine" ──▶ works 50 ms ── releases          waits …
    B                            waits ................ granted ── "mine" ──▶ works 50 ms
                                                   ◀───▶ the hand-off

Each hand-off meets a waiter that has waited for a whole hold. A holder never
takes its own lock again before the other had it, so no hand-off is missed
because the releaser is nearer. Both processes read the same clock: Linux's
CLOCK_MONOTONIC counts alike in all processes.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

import userlock


class Turn(NamedTuple):
    """One player's holding of the lock. Times on the monotonic clock, in seconds.

    Attributes:
        granted_at: when its acquire returned.
        released_at: when its release began; 0 at the end of a game.
        waited_cpu: processor time of its acquire.
    """

    granted_at: float
    released_at: float
    waited_cpu: float


class Lock(Protocol):
    """What the players need of a lock, whoever made it."""

    def acquire(self) -> None: ...

    def release(self) -> None: ...


class _UserLock:
    """userlock with everything at its defaults, but for outages: they would look like a lock."""

    def __init__(self, address: str) -> None:
        self._service = userlock.LockService.from_url(
            f"memcache://{address}?prefix=bench", outage="fail"
        )
        self._lease: userlock.Lease | None = None

    def acquire(self) -> None:
        self._lease = self._service.acquire("learner-1")

    def release(self) -> None:
        assert self._lease is not None
        self._service.release(self._lease)


#: Who can play: the name in the table, and what makes the lock from memcached's address.
LOCKS: dict[str, Callable[[str], Lock]] = {"userlock": _UserLock}


def turns_of(
    lock: Lock, peer: Connection, *, first: bool, handoffs: int, hold: float
) -> list[Turn]:
    """Play one game: `handoffs` times the lock changes hands. Gives this player's turns."""
    turns = []
    holds = first
    for number in range(handoffs + 1):
        if holds:
            began = time.process_time()
            lock.acquire()
            granted_at = time.monotonic()
            cpu = time.process_time() - began
            peer.send_bytes(b"mine")
            last = number == handoffs
            if not last:
                time.sleep(hold)
            released_at = time.monotonic()
            lock.release()
            turns.append(Turn(granted_at, 0.0 if last else released_at, cpu))
        else:
            peer.recv_bytes()
        holds = not holds
    return turns


def _play(
    name: str, address: str, first: bool, peer: Connection, control: Connection
) -> None:  # pragma: no cover (runs in a process of its own)
    lock = LOCKS[name](address)
    while (game := control.recv()) is not None:
        handoffs, hold = game
        control.send(turns_of(lock, peer, first=first, handoffs=handoffs, hold=hold))


class Pair:
    """Two players in processes of their own."""

    def __init__(self, controls: tuple[Connection, Connection]) -> None:
        self._controls = controls

    def play(self, *, handoffs: int, hold: float) -> list[Turn]:
        """One game. Gives the turns of both, in the order in which they had the lock.

        Raises:
            RuntimeError: a player died; it has said why on stderr.
        """
        for control in self._controls:
            control.send((handoffs, hold))
        try:
            first, second = (control.recv() for control in self._controls)
        except EOFError:
            raise RuntimeError("a player of the hand-off benchmark died") from None
        return [(first, second)[number % 2][number // 2] for number in range(handoffs + 1)]


@contextmanager
def pair(name: str, address: str) -> Iterator[Pair]:
    """Start two players of the lock called `name`; both are gone afterwards."""
    # Not forked: a player shares nothing with this process but its pipes.
    context = multiprocessing.get_context("spawn")
    peers = context.Pipe()
    processes = []
    controls = []
    try:
        for first, peer in zip((True, False), peers, strict=True):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_play, args=(name, address, first, peer, theirs), daemon=True
            )
            process.start()
            processes.append(process)
            controls.append(ours)
            # Held by the player alone, so that its death is seen by all.
            theirs.close()
        for peer in peers:
            peer.close()
        yield Pair((controls[0], controls[1]))
        for control in controls:
            control.send(None)
        for process in processes:
            process.join(5)
    finally:
        for process in processes:
            process.terminate()
            process.join()
