"""Waiting for conditions, and timing on a busy machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return whether there is such a process that is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], object], seconds: float = 10) -> float:
    """Poll until the condition holds; return the seconds that it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it has not come about"
        time.sleep(0.002)
    return time.monotonic() - started


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Poll until the condition holds; other tasks go on meanwhile."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


def assert_within(seconds: float, measure: Callable[[], float], times: int = 3) -> None:
    """Assert that it can be done within that time.

    An operation that is too slow in itself is too slow each time; on a busy machine only sometimes.

    Args:
        seconds: the bound.
        measure: does it, and returns its time in seconds.
        times: the maximal number of attempts.
    """
    took: list[float] = []
    while not took or took[-1] > seconds:
        assert len(took) < times, f"took {took} s each time, with a bound of {seconds} s"
        took.append(measure())
