"""Take connections out of a pool, as callers do that use them for long."""

from __future__ import annotations

from typing import TypeVar

from userlock.stores.pool import Pool
from userlock.stores.stream import Stream
from userlock.waits import run

_C = TypeVar("_C", bound=Stream)


def take(pool: Pool[_C]) -> _C:
    """Return a connection that nobody else uses; to be given back, or closed."""
    try:
        return pool.idle.pop()
    except IndexError:
        return run(pool.make, or_idle=True)
