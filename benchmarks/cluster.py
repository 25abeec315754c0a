"""An uncontended lock on a cluster of six servers, compared with one server and with redis-py.

Three primaries and their replicas, on the same cores as the client. What a cluster costs a lock is
the look-up of its slot and node, as the row without replicas shows; replicas take time of the same
cores here, also that of one server. `wait_replicas=1` waits for the replica's word, within the
round trip of the acquire.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import redis
from redis.cluster import RedisCluster as ClusterClient

from benchmarks import locks, peers
from benchmarks.figures import Section, Table, compared
from benchmarks.runner import Contender, Operation, interleave, repeat
from tests.clusters import RedisCluster

ONE = "userlock, one Redis"


def run(*, quick: bool) -> Section:
    """Measure; about 20 seconds, or 5 if `quick`."""
    rounds, pairs = (30, 10) if quick else (200, 20)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(locks.started(locks.Store.REDIS))
        copied = stack.enter_context(locks.started(locks.Store.REDIS))
        replica = stack.enter_context(locks.started(locks.Store.REDIS))
        with redis.Redis(*replica.pair) as client:
            client.replicaof(*map(str, copied.pair))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(RedisCluster(folder / "cluster"))
        bare = stack.enter_context(RedisCluster(folder / "bare", replicas=0))
        seed = cluster.nodes[0]
        urls = {
            ONE: f"redis://{server.address}?prefix=bench",
            "userlock, one Redis with a replica": f"redis://{copied.address}?prefix=bench",
            "userlock, cluster without replicas": bare.url("bench"),
            "userlock, cluster": cluster.url("bench"),
            "userlock, cluster, wait_replicas=1": cluster.url("bench", "&wait_replicas=1"),
        }
        operations = {name: _of_userlock(stack, url) for name, url in urls.items()}
        one = redis.Redis(*server.pair)
        several = ClusterClient(host="127.0.0.1", port=seed.port)
        operations["redis-py, one Redis"] = _of_redis_py(one)
        operations["redis-py, cluster"] = _of_redis_py(several)
        stack.callback(one.close)
        stack.callback(several.close)
        contenders = {
            name: Contender(name=name, operations=repeat(each), around=contextlib.nullcontext)
            for name, each in operations.items()
        }
        times = interleave(list(contenders.values()), rounds=rounds, operations=pairs)
    return Section(
        name="cluster",
        title="Uncontended lock on a cluster: acquire and release",
        method=(
            f"Median time of a pair over {rounds} rounds of {pairs} pairs each, all contenders in "
            f"each round, and its ratio to userlock on one Redis in the same round."
        ),
        tables=(
            Table(
                title="three primaries with a replica each",
                measurements=compared(times, metric="pair", baseline=ONE),
            ),
        ),
    )


def _of_userlock(stack: contextlib.ExitStack, url: str) -> Operation:
    client = peers.UserLock(url)
    stack.callback(client.close)
    lock = client.lock("learner-1")

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def _of_redis_py(client: Any) -> Operation:
    lock = client.lock("learner-2", timeout=60)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair
