"""The store contract on a real Redis, and its particulars."""

from __future__ import annotations

import contextlib
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

import userlock
from tests.leases import existing
from tests.servers import RedisServer, redis_store
from userlock.admin.health import Verdict, examine
from userlock.admin.redis import list_locks
from userlock.lock.record import Record
from userlock.lock.store import (
    GRACE_SECONDS,
    MAX_RECORD_BYTES,
    RecordRefused,
    StoreUnavailable,
)
from userlock.stores.redis import RedisStore
from userlock.testing import (
    FenceContract,
    ForkContract,
    RaceContract,
    TimeContract,
    VerbContract,
    WakeContract,
)
from userlock.waits import run


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def store(redis_server: RedisServer, prefix: str) -> Iterator[RedisStore]:
    patient = "socket_connect_timeout=5&socket_timeout=5"
    store = redis_store(f"{redis_server.url}?prefix={prefix}&{patient}")
    yield store
    store.close()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_server.url)
    yield client
    client.close()


class _OnRedis:
    @pytest.fixture
    def store(self, store: RedisStore) -> RedisStore:
        return store


class TestRedis(
    _OnRedis,
    VerbContract,
    RaceContract,
    ForkContract,
    FenceContract,
    WakeContract,
):
    pass


@pytest.mark.slow
class TestRedisInTime(_OnRedis, TimeContract):
    pass


class TestAsStored:
    def test_a_record_stands_behind_a_head(
        self, store: RedisStore, client: Any, prefix: str
    ) -> None:
        store.create("ann", b"first\nline", 60)
        value = client.get(f"{prefix}:lock=ann")
        head, _, record = value.partition(b"\n")
        assert (len(head), head[:1], record) == (17, b"#", b"first\nline")

    def test_a_record_is_kept_for_a_second_and_the_grace_longer(
        self, store: RedisStore, client: Any, prefix: str
    ) -> None:
        """A server's clock that is a second fast takes no lease away."""
        version = store.create("ann", b"first", 60)
        longest = (60 + 1 + GRACE_SECONDS) * 1000
        assert longest - 500 < client.pttl(f"{prefix}:lock=ann") <= longest
        assert store.swap("ann", version, b"next", 10.0001)
        assert client.pttl(f"{prefix}:lock=ann") <= (10 + 1 + GRACE_SECONDS) * 1000 + 1
        client.pexpire(f"{prefix}:lock=ann", GRACE_SECONDS * 1000 + 500)
        assert not existing(store.read("ann")).lapsed
        client.pexpire(f"{prefix}:lock=ann", GRACE_SECONDS * 1000)
        assert existing(store.read("ann")).lapsed


class TestReleases:
    """A release looks for the first waiter on the server, which serves nobody else meanwhile."""

    @staticmethod
    def waiters(many: int) -> bytes:
        """Return a record with so many that have left, and batch ones behind them."""
        lines = [b"+i gone-%d" % number for number in range(many)]
        lines += [b"= gone-%d" % number for number in range(many)]
        lines += [b"+b batch-%d" % number for number in range(many)]
        return b"\n".join([b"[]", *lines, b"^ batch-7"])

    def test_the_first_waiter_is_woken(self, store: RedisStore, client: Any, prefix: str) -> None:
        """Batch waiters that have aged come before others; those that have left are none."""
        rows = [
            (b"", b""),
            (b"\n+b b1\n+b b2", b"b1"),
            (b"\n+b b1\n+i i1\n+b b2\n^ b2", b"b1"),
            (b"\n+b b1\n+i i1\n+b b2\n^ b2\n= b2", b"i1"),
            (b"\n+i i1\n+b b1\n^ b1", b"i1"),
            (b"\n+b b1\n+i i1\n~i i2", b"i1"),
            (b"\n+i i1\n~i i2\n= i1 1.5", b"i2"),
            (b"\n+i i1 x\n+i i11\n= i1", b"i11"),
            (b"\n+i i1\n= i1", b""),
        ]
        with contextlib.closing(client.pubsub()) as heard:
            heard.psubscribe(f"{prefix}:wake:*")
            assert heard.get_message(timeout=5)["type"] == "psubscribe"
            for waiters, first in rows:
                lock_id = uuid.uuid4().hex
                store.create(lock_id, b"[]" + waiters, 60)
                store.append_and_wake(lock_id, b"\n- holder")
                client.publish(f"{prefix}:wake:end", b"")
                found = heard.get_message(timeout=5)
                if first:
                    assert found["data"].split(b" ")[0] == first
                    found = heard.get_message(timeout=5)
                assert found["channel"] == f"{prefix}:wake:end".encode()

    def test_its_time_grows_with_the_waiters_not_with_their_square(
        self, store: RedisStore, client: Any
    ) -> None:
        """Of 16 times as many: not 256 times as long, by the server's own count."""

        def microseconds(many: int) -> float:
            store.create(str(many), self.waiters(many), 60)
            store.append_and_wake(str(many), b"\n- holder")  # the script is known from here on
            client.config_resetstat()
            for _ in range(5):
                store.append_and_wake(str(many), b"\n- holder")
            return float(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])

        assert microseconds(8_000) < 100 * microseconds(500)


class TestForeignValues:
    @pytest.mark.parametrize(
        "value",
        [
            *(b"", b"\xff[]", b"# not a head of ours\nbut like one", b"x" * 100_000),
        ],
    )
    def test_another_programs_string_is_returned_as_it_is(
        self, store: RedisStore, client: Any, prefix: str, value: bytes
    ) -> None:
        client.set(f"{prefix}:lock=ann", value)
        assert store.create("ann", b"first", 60) is None
        stored = existing(store.read("ann"))
        assert (stored.record, stored.lapsed) == (value, False)
        appended = existing(store.append("ann", b"\nline"))
        assert appended.record == value + b"\nline"
        assert store.swap("ann", stored.version, b"first", 60) is None
        version = existing(store.swap("ann", appended.version, b"first", 60))
        assert existing(store.read("ann")).record == b"first"
        client.set(f"{prefix}:lock=ann", value)
        assert not store.remove("ann", version)
        assert store.remove("ann", stored.version)

    def test_a_record_without_an_end_does_not_lapse(
        self, store: RedisStore, client: Any, prefix: str
    ) -> None:
        store.create("ann", b"first", 60)
        client.persist(f"{prefix}:lock=ann")
        assert existing(store.read("ann")).lapsed is False

    @pytest.mark.parametrize(
        "use",
        [
            lambda store, version: store.read("ann"),
            lambda store, version: store.append("ann", b"\nline"),
            lambda store, version: store.swap("ann", version, b"next", 60),
            lambda store, version: store.remove("ann", version),
        ],
    )
    def test_a_value_of_another_type_is_refused(
        self,
        store: RedisStore,
        client: Any,
        prefix: str,
        use: Callable[[RedisStore, object], object],
    ) -> None:
        version = store.create("ann", b"first", 60)
        client.delete(f"{prefix}:lock=ann")
        client.hset(f"{prefix}:lock=ann", "a", "b")
        assert store.create("ann", b"second", 60) is None
        with pytest.raises(RecordRefused, match="other than a record") as caught:
            use(store, version)
        assert isinstance(caught.value.__cause__, redis.ResponseError)
        assert client.hgetall(f"{prefix}:lock=ann") == {b"a": b"b"}

    def test_a_huge_value_is_not_read_to_be_compared(
        self, store: RedisStore, client: Any, prefix: str
    ) -> None:
        """Redis would copy hundreds of MB in one command, and answer nobody meanwhile."""
        version = store.create("ann", b"first", 60)
        client.setrange(f"{prefix}:lock=ann", 20_000_000, b"x")
        client.config_resetstat()
        assert store.swap("ann", version, b"next", 60) is None
        assert not store.remove("ann", version)
        assert "cmdstat_get" not in client.info("commandstats")
        client.delete(f"{prefix}:lock=ann")

    @pytest.mark.parametrize("value", [b"", b"x"])
    def test_a_short_value_is_compared_in_full(
        self, store: RedisStore, client: Any, prefix: str, value: bytes
    ) -> None:
        client.set(f"{prefix}:lock=ann", value)
        version = existing(store.read("ann")).version
        client.delete(f"{prefix}:lock=ann")
        assert store.swap("ann", version, b"next", 60) is None
        client.set(f"{prefix}:lock=ann", value + b"y")
        assert store.swap("ann", version, b"next", 60) is None
        client.set(f"{prefix}:lock=ann", value)
        assert store.swap("ann", version, b"next", 60) is not None


class TestBounds:
    """Redis takes values of 512 MB."""

    def test_a_value_that_no_record_has_is_not_sent(
        self, store: RedisStore, client: Any, prefix: str
    ) -> None:
        client.set(f"{prefix}:lock=ann", b"x" * (20 << 20))
        read = existing(store.read("ann"))
        assert (read.record, read.lapsed) == (b"", False)
        assert not Record(read).holder.token
        assert store.swap("ann", existing(store.read("ann")).version, b"mine", 60) is not None
        assert existing(store.read("ann")).record == b"mine"

    def test_it_can_be_removed_unless_it_has_changed(
        self, store: RedisStore, client: Any, prefix: str
    ) -> None:
        client.set(f"{prefix}:lock=ann", b"x" * (2 << 20))
        version = existing(store.read("ann")).version
        client.append(f"{prefix}:lock=ann", b"y")
        assert not store.remove("ann", version)
        assert store.remove("ann", existing(store.read("ann")).version)

    def test_no_line_makes_a_record_too_long(self, store: RedisStore) -> None:
        store.create("ann", b"x" * (MAX_RECORD_BYTES - 4), 60)
        assert existing(store.append("ann", b"\nabc")).record.endswith(b"\nabc")
        assert len(existing(store.append("ann", b"\nd")).record) == MAX_RECORD_BYTES

    def test_a_listing_has_bounds(self, store: RedisStore, client: Any, prefix: str) -> None:
        for number in range(12):
            client.set(f"{prefix}:lock={number}", b"x" * 1_000_000)
        client.set(f"{prefix}:lock=" + "z" * 10**6, b"x")
        locks, note = list_locks(store, 1000)
        assert 0 < len(locks) <= 8
        assert "MB" in note
        assert max(len(lock.name) for lock in locks) < 10


class TestUrls:
    def test_options_go_to_the_client(self, redis_server: RedisServer, prefix: str) -> None:
        """The last mention of a database wins, as it does in redis-py."""
        url = f"redis://{redis_server.address}?db=3&socket_timeout=5&prefix={prefix}"
        store = redis_store(url)
        assert store.create("ann", b"first", 60)
        client = redis.Redis(port=redis_server.port, db=3)
        assert client.exists(f"{prefix}:lock=ann")
        client.close()
        store.close()

    def test_a_user_and_a_password(
        self, redis_server: RedisServer, client: Any, prefix: str
    ) -> None:
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~app1:*", "+@all")
        good = redis_store(f"redis://app:secret@{redis_server.address}?prefix=app1")
        assert good.create(prefix, b"first", 60)
        good.close()
        elsewhere = redis_store(f"redis://app:secret@{redis_server.address}?prefix=app2")
        with pytest.raises(StoreUnavailable, match=r"[Nn]o permissions") as refused:
            elsewhere.create(prefix, b"first", 60)
        elsewhere.close()
        assert refused.value.sent


class TestOutages:
    def test_with_any_client_the_librarys_time_outs_count(self, own_redis: RedisServer) -> None:
        """On the idle connection, and on a new one."""
        with redis.Redis(port=own_redis.port, socket_timeout=60) as client:
            store = RedisStore(client)
            store.create("ann", b"first", 60)
            with own_redis.paused():
                for _ in range(2):
                    started = time.monotonic()
                    with pytest.raises(StoreUnavailable, match=r"timed out|Timeout") as caught:
                        store.create("ann", b"second", 60)
                    assert time.monotonic() - started < 20
                    assert caught.value.sent
            store.close()

    def test_a_server_that_is_no_primary_any_more_is_left(self, own_redis: RedisServer) -> None:
        """A new connection may lead to the new primary."""
        store = redis_store(f"{own_redis.url}?socket_timeout=5")
        version = store.create("ann", b"first", 60)
        with redis.Redis(port=own_redis.port) as client:
            client.replicaof("127.0.0.1", 1)
            with pytest.raises(StoreUnavailable, match="read only"):
                store.swap("ann", version, b"swapped", 60)
            assert store.connections.idle == []
            client.replicaof("NO", "ONE")
        assert store.swap("ann", version, b"swapped", 60) is not None
        store.close()

    def test_a_version_of_before_a_restart_is_worth_nothing(self, own_redis: RedisServer) -> None:
        store = redis_store(f"{own_redis.url}?socket_timeout=5")
        old = store.create("ann", b"first", 60)
        own_redis.restart()
        assert store.read("ann") is None
        assert store.create("ann", b"first", 60) is not None
        assert store.swap("ann", old, b"swapped", 60) is None
        assert not store.remove("ann", old)
        store.close()

    def test_a_connection_that_is_not_made_in_time_was_not_used(self) -> None:
        """A full backlog: the kernel answers no connection."""
        with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
            address = listener.getsockname()
            crowd = [socket.socket() for _ in range(4)]
            for one in crowd:
                one.setblocking(False)
                one.connect_ex(address)
            with pytest.raises(StoreUnavailable) as caught:
                RedisStore(redis.Redis(port=address[1])).create("ann", b"first", 60)
            assert (caught.value.sent, caught.value.slow) == (False, False)
            for one in crowd:
                one.close()


def test_the_rights_in_the_documentation_suffice(redis_server: RedisServer) -> None:
    """For everything that a lock does, wake-ups included; `doctor` too."""
    page = (Path(__file__).parents[3] / "docs/deploy.md").read_text()
    said = existing(re.search(r"ACL:\s+`([^`]+)`", page))
    prefix = uuid.uuid4().hex
    rights = [*said[1].replace("PREFIX", prefix).split(), "+client|setname"]
    with contextlib.closing(redis.Redis(port=redis_server.port)) as client:
        client.execute_command("ACL", "SETUSER", prefix, "reset", "on", ">secret", *rights)
    url = f"redis://{prefix}:secret@{redis_server.address}/3?prefix={prefix}&client_name=points"
    service = userlock.LockService.from_url(url, outage="fail")
    with contextlib.closing(service), userlock.scope(service) as scope:
        assert scope.acquire("ann").fence > 0
        assert service.store.wake_ups is not None
        run(service.store.wake_ups.begin, "ann", "token", SimpleNamespace())  # type: ignore[arg-type]
        assert service.store.wake_ups.come
        scope.release("ann")
        scope.acquire("ann", heartbeat=True).extend(10)
    assert Verdict.WRONG not in {each.verdict for each in examine(service.store)}
