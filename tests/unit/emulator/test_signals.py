"""A signal that arrives while the main thread begins to wait is not missed."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ROUNDS = 3000
_WAITS = """
import signal, sys, threading
from userlock_emulator.signals import StopSignal

class Event(threading.Event):
    def __init__(self):
        super().__init__()
        signal.signal(signal.SIGINT, lambda *_: self.set())

for number in range(int(sys.argv[2])):
    stop = {"StopSignal": StopSignal, "Event": Event}[sys.argv[1]]()
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, (1 + number % 60) / 1e6)
    stop.wait()
"""


def wait_often(kind: str, timeout: float) -> None:
    """Wait for signals, which arrive up to 60 microseconds later."""
    command = [sys.executable, "-c", _WAITS, kind, str(_ROUNDS)]
    subprocess.run(command, check=True, timeout=timeout)


def test_no_signal_is_missed() -> None:
    wait_often("StopSignal", 60)


def test_an_event_misses_one() -> None:
    """The negative control."""
    with pytest.raises(subprocess.TimeoutExpired):
        wait_often("Event", 3)
