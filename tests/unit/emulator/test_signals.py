"""A signal that arrives while the main thread begins to wait is not missed."""

import subprocess
import sys

WAITS = """
import signal
from userlock_emulator.signals import StopSignal

for number in range(1000):
    stop = StopSignal()
    signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, (1 + number % 60) / 1e6)
    stop.wait()
"""


def test_no_signal_is_missed() -> None:
    """Each arrives up to 60 microseconds after the beginning of the wait."""
    subprocess.run([sys.executable, "-c", WAITS], check=True, timeout=60)
