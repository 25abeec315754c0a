"""The needs of a day's traffic in memcached and its connections."""

from __future__ import annotations

import math
from typing import NamedTuple

from tools.traffic.day import Result
from tools.traffic.tally import PART_SECONDS
from userlock.lock.lease import Claim, Priority, new_token
from userlock.lock.policy import LockPolicy
from userlock.lock.store import GRACE_SECONDS
from userlock.stores.keys import KeySpace

#: The header of each item of memcached 1.6 on 64 bits, with its CAS number.
_HEADER_BYTES = 48 + 8
#: memcached's chunk sizes: the smallest, the factor to the next, and the alignment.
_SMALLEST, _FACTOR, _ALIGNED = 96, 1.25, 8
#: Threads of a worker process, and the maximal share of their time that requests may take.
THREADS = 8
BUSY_SHARE = 0.5
#: Of a cluster of Redis or Valkey: its primaries, and the time from the failure of one until
#: processes use its replica (a node time-out of 15 s, the election, a second of ours).
SHARDS = 3
FAIL_OVER_SECONDS = 20.0


class Needs(NamedTuple):
    """The needs of a day's traffic.

    Attributes:
        records: mean number of records in memcached in the busiest ten minutes.
        record_bytes: memory of one record.
        most_records: number of records if no release arrived for the time of a lease.
        workers: processes of `THREADS` threads for interactive requests.
        connections: maximal number of connections to each memcached server, the sweep's included.
        node_connections: the same to each node of a cluster, with one of each process to listen.
        shard_locks: locks per second of each shard of a cluster, in the busiest ten minutes.
        lost_locks: locks that are degraded, or lost, while one of the shards fails over then.
    """

    records: float
    record_bytes: int
    most_records: float
    workers: int
    connections: int
    node_connections: int
    shard_locks: float
    lost_locks: float


def needs(result: Result) -> Needs:
    """Return the needs of this day."""
    profile, tally = result.profile, result.tally
    busiest = max(tally.operations) / max(sum(tally.operations), 1.0)
    lock_seconds = LockPolicy().interactive.lock_timeout + GRACE_SECONDS
    requests = max(tally.locks_by_part) / PART_SECONDS * tally.requests / max(tally.locks, 1.0)
    waiting = sum(seconds * weight for seconds, weight in tally.waits) / max(tally.locks, 1.0)
    locked = profile.mean_section + 2 * profile.round_trip + waiting
    seconds = profile.other + locked * tally.locks / max(tally.requests, 1.0)
    workers = max(2, math.ceil(requests * seconds / (THREADS * BUSY_SHARE)))
    connections = workers * THREADS + result.sweep.workers
    shard_locks = max(tally.locks_by_part) / PART_SECONDS / SHARDS
    return Needs(
        records=tally.record_seconds * busiest / PART_SECONDS,
        record_bytes=item_bytes(),
        most_records=max(tally.locks_by_part) / PART_SECONDS * lock_seconds,
        workers=workers,
        connections=connections,
        node_connections=connections + workers + result.sweep.workers,
        shard_locks=shard_locks,
        lost_locks=shard_locks * FAIL_OVER_SECONDS,
    )


def item_bytes(
    *,
    prefix: str = "learn",
    lock_id: str = "kaid_1079394298523482347521",
    process: str = "learn-00042-abc/17",
    request: str = "POST /api/internal/exercises/adding_fractions/attempt",
) -> int:
    """Return memcached's memory for a lock without waiters: a chunk of a slab."""
    record = Claim(
        lock_id, new_token(), Priority.INTERACTIVE, 1763640000.123, 60.0, process, request
    ).record
    # A key ends with a zero byte, a value with CRLF.
    size = _HEADER_BYTES + len(KeySpace(prefix).lock(lock_id)) + 1 + len(record) + 2
    chunk = float(_SMALLEST)
    while _aligned(chunk) < size:
        chunk = _aligned(chunk) * _FACTOR
    return _aligned(chunk)


def _aligned(size: float) -> int:
    return math.ceil(int(size) / _ALIGNED) * _ALIGNED
