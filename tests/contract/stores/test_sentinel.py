"""The store contract on the primary that real Sentinels name, and its fail-over."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest
import redis
from redis.sentinel import Sentinel

import userlock
from tests.chaos.gauges import gauged
from tests.clusters import SentinelGroup, until
from tests.contract.stores.verbs import use
from tests.faults.hostile import HostileServer, Reply
from tests.faults.test_hostile import BOUND_BYTES, BOUND_SECONDS
from userlock.admin.health import Verdict, examine
from userlock.admin.redis import list_locks
from userlock.errors import LockServiceUnavailable, LockTimeout
from userlock.lock.lease import Fenced
from userlock.lock.store import StoreUnavailable
from userlock.stores.redis import RedisStore
from userlock.stores.urls import open_store
from userlock.testing import (
    ForkContract,
    WakeContract,
)
from userlock.waits import run

_BREAKS = ("a slow line", "an endless line", "a huge value", "deep lists", "HTTP")
_HOSTILE = [each for each in Reply.to("redis") if each.framed or each.name in _BREAKS]
_PATIENT = "&socket_connect_timeout=5&socket_timeout=5"


@pytest.fixture(scope="session")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    folder = tmp_path_factory.mktemp("sentinels")
    with SentinelGroup(folder, down_after_seconds=30) as group:
        yield group


class TestSentinel(ForkContract, WakeContract):
    @pytest.fixture
    def store(self, group: SentinelGroup) -> Iterator[RedisStore]:
        store = open_store(group.url(uuid.uuid4().hex, _PATIENT))
        assert isinstance(store, RedisStore)
        with contextlib.closing(store):
            yield store

    def test_each_verb(self, store: RedisStore) -> None:
        use(store)

    def test_it_is_examined_and_listed(self, store: RedisStore) -> None:
        assert store.create("ann", b"[]", 60) is not None
        assert [each.name for each in list_locks(store, 10).locks] == ["ann"]
        assert Verdict.WRONG not in {each.verdict for each in examine(store)}


def test_no_connection_remains(group: SentinelGroup) -> None:
    """Neither to the servers nor to the Sentinels; to these none while it is used, too."""
    servers = [node.port for node in group.servers]
    with contextlib.closing(open_store(group.url(options=_PATIENT))) as store:
        assert store.read("ann") is None
        assert gauged(servers)["connections"] == 1
        assert gauged(group.ports)["connections"] == 0
    assert gauged(servers)["connections"] == 0


def test_the_master_that_a_client_of_sentinels_names(group: SentinelGroup) -> None:
    sentinels = Sentinel([("127.0.0.1", port) for port in group.ports], socket_timeout=2)
    client = sentinels.master_for("app", socket_timeout=2)
    with contextlib.closing(RedisStore(client, prefix=uuid.uuid4().hex)) as store:
        use(store)
    stranger = RedisStore(sentinels.master_for("another", socket_timeout=2))
    with pytest.raises(StoreUnavailable, match="another") as caught:
        stranger.read("ann")
    assert not caught.value.sent
    for sentinel in sentinels.sentinels:
        sentinel.close()


def test_a_service_that_nobody_watches(group: SentinelGroup) -> None:
    service = userlock.LockService.from_url(group.url().replace("/app", "/other"), outage="fail")
    with (
        contextlib.closing(service),
        pytest.raises(
            LockServiceUnavailable, match="none of 3 Sentinels answers with a primary of 'other'"
        ),
    ):
        service.acquire("ann")


def test_sentinels_with_a_password(group: SentinelGroup) -> None:
    url = group.url(options="&sentinel_username=ann&sentinel_password=s3cret")
    service = userlock.LockService.from_url(url, outage="fail")
    with contextlib.closing(service), pytest.raises(LockServiceUnavailable) as caught:
        service.acquire("ann")
    assert "give sentinel_username= and sentinel_password=" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("reply", _HOSTILE, ids=lambda reply: reply.name)
def test_a_hostile_sentinel_is_an_outage_in_time(group: SentinelGroup, reply: Reply) -> None:
    """With another one behind it, it is none."""
    with HostileServer(group.ports[0]) as server, server.answering(reply):
        with contextlib.closing(open_store(f"redis+sentinel://{server.address}/app")) as store:
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match="none of 1 Sentinels"):
                store.read("ann")
            assert time.monotonic() - started < BOUND_SECONDS
        assert server.answered
        assert server.sent < BOUND_BYTES
        if reply.slow:  # a patient one would wait for it
            return
        url = group.url(options=_PATIENT).replace(f":{group.ports[0]}", f":{server.port}")
        with contextlib.closing(open_store(url)) as store:
            assert store.read("ann") is None


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_promoted_replica_has_the_leases(own_sentinels: SentinelGroup, how: str) -> None:
    url = own_sentinels.url(options="&wait_replicas=1")
    service = userlock.LockService.from_url(url, outage="fail")

    def works(lock_id: str) -> bool:
        try:
            service.release(service.acquire(lock_id, wait_timeout=0))
        except LockServiceUnavailable:
            return False
        return True

    with contextlib.closing(service), contextlib.ExitStack() as stack:
        lease = service.acquire("ann", lock_timeout=120)
        before = run(service.fence, lease)
        assert isinstance(before, Fenced)
        failed = own_sentinels.primary()
        if how == "killed":
            failed.kill()
        else:
            stack.enter_context(failed.paused())
        own_sentinels.wait_for_promotion(failed)
        until(lambda: works("bob"), "the promoted replica is found")
        with pytest.raises(LockTimeout):
            works("ann")
        after = run(service.fence, before.lease)
        assert isinstance(after, Fenced)
        assert after.number > before.number
        service.release(after.lease)
        if how == "killed":
            failed.start()
        else:
            stack.close()
        until(lambda: not failed.is_primary, "it is a replica")
        assert works("ann")


def test_after_a_planned_fail_over_a_process_uses_one_primary(own_sentinels: SentinelGroup) -> None:
    """The former one goes on for some seconds. New connections do not lead to it, used ones do."""
    store = open_store(own_sentinels.url(options=_PATIENT))
    assert isinstance(store, RedisStore)
    former = own_sentinels.primary()
    with contextlib.closing(store):
        assert store.read("ann") is None
        used = store.connections.idle.pop()
        with contextlib.closing(redis.Redis(port=own_sentinels.ports[0])) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", "app")
        own_sentinels.wait_for_promotion(former)
        assert store.create("ann", b"[]", 60) is not None  # by a new one
        assert former.is_primary, "too late to see it"
        store.connections.give_back(used)  # the next call takes it
        assert store.read("ann") is not None
