"""Waiting for what comes about, and timing on a machine that has other work to do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 10) -> float:
    """Look again and again; how long it took, in seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it has not come about"
        time.sleep(0.002)
    return time.monotonic() - started


def assert_within(seconds: float, measure: Callable[[], float], times: int = 3) -> None:
    """Whether it can be done in that time.

    What takes too long by its nature does so each time; a busy machine not.

    Args:
        seconds: the bound.
        measure: does it, and tells its time in seconds.
        times: how many there are at most.
    """
    took: list[float] = []
    while not took or took[-1] > seconds:
        assert len(took) < times, f"took {took} s each time, with a bound of {seconds} s"
        took.append(measure())
