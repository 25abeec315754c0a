"""What follows from a day for memcached and for its connections."""

from __future__ import annotations

import math
from typing import NamedTuple

from tools.traffic.day import Result
from tools.traffic.tally import PART_SECONDS
from userlock.lock.lease import Holder, new_token
from userlock.lock.policy import LockPolicy
from userlock.lock.store import GRACE_SECONDS
from userlock.stores.memcache.keys import KeySpace

#: In front of each item of memcached 1.6 on 64 bits, with its number for compare and swap.
_HEADER_BYTES = 48 + 8
#: memcached's sizes of chunks: the smallest, the factor to the next, and what they are rounded to.
_SMALLEST, _FACTOR, _ALIGNED = 96, 1.25, 8
#: Threads of a worker process, and how much of their time is to be spent on requests at most.
THREADS = 8
BUSY_SHARE = 0.5


class Needs(NamedTuple):
    """What a day's traffic takes.

    Attributes:
        records: that memcached has at one moment of the busiest ten minutes, on average.
        record_bytes: what it takes for one.
        most_records: the same if no release of a whole lease's time arrived.
        workers: processes of `THREADS` threads for people's requests.
        connections: that these may have to each memcached server at most, the sweep's included.
    """

    records: float
    record_bytes: int
    most_records: float
    workers: int
    connections: int


def needs(result: Result) -> Needs:
    """What this day takes."""
    profile, tally = result.profile, result.tally
    busiest = max(tally.operations) / max(sum(tally.operations), 1.0)
    lock_seconds = LockPolicy().interactive.lock_timeout + GRACE_SECONDS
    requests = max(tally.locks_by_part) / PART_SECONDS * tally.requests / max(tally.locks, 1.0)
    waiting = sum(seconds * weight for seconds, weight in tally.waits) / max(tally.locks, 1.0)
    locked = profile.mean_section + 2 * profile.round_trip + waiting
    seconds = profile.other + locked * tally.locks / max(tally.requests, 1.0)
    workers = max(2, math.ceil(requests * seconds / (THREADS * BUSY_SHARE)))
    return Needs(
        records=tally.record_seconds * busiest / PART_SECONDS,
        record_bytes=item_bytes(),
        most_records=max(tally.locks_by_part) / PART_SECONDS * lock_seconds,
        workers=workers,
        connections=workers * THREADS + result.sweep.workers,
    )


def item_bytes(
    *,
    prefix: str = "learn",
    lock_id: str = "kaid_1079394298523482347521",
    process: str = "learn-00042-abc/17",
    request: str = "POST /api/internal/exercises/adding_fractions/attempt",
) -> int:
    """What memcached takes for a lock that nobody waits for: a chunk of a slab."""
    record = Holder(new_token(), "interactive", 1763640000.123, 60.0, process, request).encode()
    # A key ends with a zero byte, a value with a line's end.
    size = _HEADER_BYTES + len(KeySpace(prefix).lock(lock_id)) + 1 + len(record) + 2
    chunk = float(_SMALLEST)
    while _aligned(chunk) < size:
        chunk = _aligned(chunk) * _FACTOR
    return _aligned(chunk)


def _aligned(size: float) -> int:
    return math.ceil(int(size) / _ALIGNED) * _ALIGNED
