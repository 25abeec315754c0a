"""Real clusters under a lock service: nodes are killed, stopped, flushed, added and removed."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from tests.clusters import ClusterNode, RedisCluster, until
from userlock import LockService
from userlock.errors import LockServiceUnavailable, LockTimeout
from userlock.events import Listeners
from userlock.lock.lease import Fenced, Lease
from userlock.lock.store import LeaseStore
from userlock.stores.redis import ClusterStore
from userlock.stores.urls import open_store
from userlock.waits import run

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def service(own_cluster: RedisCluster) -> Iterator[LockService]:
    """Provide a service with the usual time-outs."""
    with contextlib.closing(service_of(own_cluster)) as service:
        yield service


def service_of(there: RedisCluster, options: str = "", prefix: str = "") -> LockService:
    store = open_store(there.url(prefix or uuid.uuid4().hex, options))
    return LockService(store, outage="fail", listeners=Listeners())


def locks_of(
    there: RedisCluster, service: LockService, most: int = 3
) -> dict[ClusterNode, list[str]]:
    """Return some locks of each primary."""
    assert isinstance(service.store, ClusterStore)
    found: dict[ClusterNode, list[str]] = {node: [] for node in there.primaries()}
    slots = {node: _slots_of(node) for node in found}
    number = 0
    while any(len(each) < most for each in found.values()):
        lock_id = f"ann-{(number := number + 1)}"
        slot = key_slot(service.store.key(lock_id))
        node = next(node for node, those in slots.items() if slot in those)
        if len(found[node]) < most:
            found[node].append(lock_id)
    return found


def _slots_of(node: ClusterNode) -> set[int]:
    return {
        slot
        for first, last, (_, port, *_), *_ in node.raw("CLUSTER", "SLOTS")
        if port == node.port
        for slot in range(first, last + 1)
    }


def use(service: LockService, lock_id: str) -> None:
    """Take and release a lock."""
    service.release(service.acquire(lock_id, wait_timeout=0))


def fenced(service: LockService, lease: Lease) -> tuple[Lease, int]:
    answers: list[Fenced] = []

    def gets() -> bool:
        answer = run(service.fence, lease)
        if isinstance(answer, Fenced):
            answers.append(answer)
        return bool(answers)

    until(gets, "the breaker has closed")
    return answers[0].lease, answers[0].number


def works(service: LockService, lock_id: str) -> bool:
    try:
        use(service, lock_id)
    except LockServiceUnavailable:
        return False
    return True


class TestADeadPrimary:
    """It neither fails the other shards, nor costs each request its time-out."""

    @staticmethod
    def requests(there: RedisCluster, service: LockService) -> tuple[float, Counter[bool]]:
        """Stop a primary; return the time of 40 requests for its locks, and how others went."""
        for those in (locks := locks_of(there, service)).values():
            for lock_id in those:
                until(lambda lock_id=lock_id: works(service, lock_id), "the lock works")  # type: ignore[misc]
        dead, *others = locks
        took, went = 0.0, Counter[bool]()
        with dead.paused():
            for _ in range(40):
                began = time.monotonic()
                assert not works(service, locks[dead][0])
                took += time.monotonic() - began
                went[works(service, locks[others[0]][1])] += 1
        return took, went

    def test_it(self, redis_cluster: RedisCluster) -> None:
        with contextlib.closing(service_of(redis_cluster)) as service:
            took, went = self.requests(redis_cluster, service)
        assert took < 40 * 0.3 / 2
        assert went[True] > 35  # (a busy machine)

    def test_with_one_breaker_for_all_nodes(
        self, redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control: the others fail, too."""
        monkeypatch.setattr(ClusterStore, "shard_of", LeaseStore.shard_of)
        with contextlib.closing(service_of(redis_cluster)) as service:
            _, went = self.requests(redis_cluster, service)
        assert went[False] > 10


class TestFailOver:
    def test_a_promoted_replica_has_the_leases(self, own_cluster: RedisCluster) -> None:
        """Those that it was sent in time; `wait_replicas=1` sees to that. Others do not notice.

        While a primary has no replica, it takes no leases that need one.
        """
        with (
            contextlib.closing(service_of(own_cluster, "&wait_replicas=1", "app")) as careful,
            contextlib.closing(service_of(own_cluster, prefix="app")) as service,
        ):
            locks = locks_of(own_cluster, service)
            dead, *others = locks
            lease = careful.acquire(locks[dead][0], lock_timeout=120)
            other = careful.acquire(locks[others[0]][0], lock_timeout=120)
            lease, before = fenced(careful, lease)
            dead.kill()
            own_cluster.wait_for_promotion(dead)
            until(lambda: works(service, locks[dead][1]), "the promoted replica is found")
            with pytest.raises(LockTimeout):
                use(service, locks[dead][0])
            with pytest.raises(LockServiceUnavailable):
                use(careful, locks[dead][1])
            lease, after = fenced(careful, lease)
            assert after > before + (1 << 35)
            careful.release(lease)
            until(lambda: works(service, lease.lock_id), "it is free")
            careful.release(other)
            dead.start()  # as a replica
            until(lambda: not dead.is_primary, "it is a replica")
            until(lambda: works(careful, locks[dead][0]), "there is a replica again")
