"""The two processes of the hand-off benchmark.

They hold one lock in turn. The holder notifies the other one, which begins to wait at once. The
holder then works for the time of a hold and releases the lock:

    A  has the lock ── "mine" ──▶ works 50 ms ── releases          waits …
    B                            waits ................ granted ── "mine" ──▶ works 50 ms
                                                   ◀───▶ the hand-off

At each hand-off the waiter has waited for a whole hold. A holder never takes its own lock again
before the other had it, so no hand-off is missed. Both processes read the same clock: Linux's
CLOCK_MONOTONIC is the same in all processes. One pair of processes plays with all locks, with a
connection for each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import NamedTuple

from benchmarks import processes
from benchmarks.crew import keep_quiet
from benchmarks.locks import KINDS, Kind
from benchmarks.peers import Lock

LOCK_ID = "learner-1"


class Turn(NamedTuple):
    """One player's holding of the lock. Times on the monotonic clock, in seconds.

    Attributes:
        granted_at: the time when its acquire returned.
        released_at: the time when its release began; 0 at the end of a game.
        waited_cpu: processor time of its acquire.
    """

    granted_at: float
    released_at: float
    waited_cpu: float


def turns_of(
    lock: Lock, peer: Connection, *, first: bool, handoffs: int, hold: float
) -> list[Turn]:
    """Play one game of `handoffs` hand-offs. Return this player's turns."""
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
    first: bool, peer: Connection, control: Connection
) -> None:  # pragma: no cover (runs in a process of its own)
    keep_quiet()
    made: dict[tuple[str, str], Lock] = {}
    while True:
        name, address, handoffs, hold = control.recv()
        lock = made.get((name, address))
        if lock is None:
            lock = made[name, address] = KINDS[name].connect(address).lock(LOCK_ID)
        try:
            turns = turns_of(lock, peer, first=first, handoffs=handoffs, hold=hold)
        except Exception as error:
            # Before the other player notices the end of the pipe and reports less about it.
            control.send(f"{type(error).__name__}: {error}")
            return
        control.send(turns)


class PlayerDied(Exception):
    """A player's lock raised, as the message says. New players have replaced the pair."""


class Pair:
    """Two players in processes of their own."""

    def __init__(self) -> None:
        self._processes: list[ForkServerProcess] = []
        self._controls: list[Connection] = []
        self._start()

    def play(self, kind: Kind, address: str, *, handoffs: int, hold: float) -> list[Turn]:
        """Play one game. Return the turns of both in order.

        Raises:
            PlayerDied: the game could not be finished.
        """
        for control in self._controls:
            control.send((kind.name, address, handoffs, hold))
        answers: list[list[Turn]] = []
        reasons: list[str] = []
        for control in self._controls:
            try:
                answer = control.recv()
            except EOFError:
                answer = "EOFError: the process died"
            if isinstance(answer, str):
                reasons.append(answer)
            else:
                answers.append(answer)
        if reasons:
            self.stop()
            self._start()
            # The other one only lost its peer.
            raise PlayerDied(min(reasons, key=lambda reason: reason.startswith("EOFError")))
        return [answers[number % 2][number // 2] for number in range(handoffs + 1)]

    def stop(self) -> None:
        """End both processes."""
        for process in self._processes:
            process.kill()
            process.join()
        for control in self._controls:
            control.close()
        self._processes.clear()
        self._controls.clear()

    def _start(self) -> None:
        # A player shares nothing with this process but its pipes.
        context = processes.context()
        peers = context.Pipe()
        for first, peer in zip((True, False), peers, strict=True):
            ours, theirs = context.Pipe()
            process = context.Process(target=_play, args=(first, peer, theirs), daemon=True)
            process.start()
            self._processes.append(process)
            self._controls.append(ours)
            # Held by the player alone, so that its death is noticed by all.
            theirs.close()
        for peer in peers:
            peer.close()


@contextmanager
def pair() -> Iterator[Pair]:
    """Provide two players and end them afterwards."""
    players = Pair()
    try:
        yield players
    finally:
        players.stop()
