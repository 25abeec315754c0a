"""Replies of a Redis that are lost, late or cut short, for each verb."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.faults.proxy import Fault, FaultProxy
from tests.servers import RedisServer
from userlock.lock.store import StoreUnavailable
from userlock.stores.redis import RedisStore
from userlock.stores.stream import Stream

#: The beginning of each verb's command: the number of arguments differs.
BEGINNINGS = {
    "create": b"*6\r\n$3\r\nSET\r\n",
    "read": b"*4\r\n$7\r\nEVALSHA\r\n",
    "append": b"*5\r\n$7\r\nEVALSHA\r\n",
    "remove": b"*6\r\n$7\r\nEVALSHA\r\n",
    "swap": b"*8\r\n$7\r\nEVALSHA\r\n",
}

#: The beginning of a new connection: redis-py introduces itself.
CLIENT = b"*4\r\n$6\r\nCLIENT\r\n"

#: Each verb on the lock "ann", for a record of the given version.
VERBS: dict[str, Callable[[RedisStore, object], object]] = {
    "create": lambda store, version: store.create("bob", b"created", 60),
    "read": lambda store, version: store.read("ann"),
    "append": lambda store, version: store.append("ann", b"\nline"),
    "remove": lambda store, version: store.remove("ann", version),
    "swap": lambda store, version: store.swap("ann", version, b"swapped", 60),
}
ONCE = ["create", "swap", "remove", "append"]
#: The faults after which the caller waits, and those that break the connection.
SILENT = [Fault.DROP_REPLY, Fault.SWALLOW, Fault.DELAY]
BREAKS = [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.CUT_REPLY]
#: The faults after which the command was executed.
DONE = [Fault.DROP_REPLY, Fault.CUT_AFTER, Fault.CUT_REPLY]


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultProxy, prefix: str) -> Iterator[RedisStore]:
    """Provide a store behind the proxy, with an open connection and loaded scripts."""
    store = RedisStore.from_url(f"redis://{proxy.address}?prefix={prefix}")
    for verb in VERBS.values():
        verb(store, store.create("ann", b"warm-up", 60) or version_of(store))
    for lock_id in ("ann", "bob"):
        if store.read(lock_id) is not None:
            store.remove(lock_id, version_of(store, lock_id))
    proxy.seen.clear()
    yield store
    store.close()


@pytest.fixture
def direct(redis_server: RedisServer, prefix: str) -> Iterator[RedisStore]:
    """Provide a store for the same keys, without the proxy."""
    store = RedisStore.from_url(f"{redis_server.url}?prefix={prefix}")
    yield store
    store.close()


def version_of(store: RedisStore, lock_id: str = "ann") -> object:
    stored = store.read(lock_id)
    assert stored is not None
    return stored.version


def record_of(store: RedisStore, lock_id: str = "ann") -> bytes | None:
    stored = store.read(lock_id)
    return None if stored is None else stored.record


def sent(proxy: FaultProxy, verb: str) -> int:
    return sum(command.startswith(BEGINNINGS[verb]) for command in proxy.seen)


class TestOneRoundTrip:
    @pytest.mark.parametrize("verb", VERBS)
    def test_each_verb_takes_one(self, store: RedisStore, proxy: FaultProxy, verb: str) -> None:
        version = store.create("ann", b"first", 60)
        proxy.seen.clear()
        assert VERBS[verb](store, version)
        assert len(proxy.seen) == sent(proxy, verb) == 1

    @pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "create"])
    def test_and_two_when_the_server_has_forgotten_the_script(
        self, store: RedisStore, proxy: FaultProxy, redis_server: RedisServer, verb: str
    ) -> None:
        version = store.create("ann", b"first", 60)
        with redis.Redis(port=redis_server.port) as client:
            client.script_flush()
        proxy.seen.clear()
        assert VERBS[verb](store, version)
        assert len(proxy.seen) == 2


class TestLostReplies:
    @pytest.mark.parametrize("fault", list(Fault))
    @pytest.mark.parametrize("verb", ONCE)
    def test_commands_that_must_not_be_repeated_are_sent_once(
        self,
        store: RedisStore,
        direct: RedisStore,
        proxy: FaultProxy,
        verb: str,
        fault: Fault,
    ) -> None:
        version = direct.create("ann", b"first", 60)
        started = time.monotonic()
        with (
            proxy.fault(BEGINNINGS[verb], fault),
            pytest.raises(StoreUnavailable, match=proxy.address) as caught,
        ):
            VERBS[verb](store, version)
        assert time.monotonic() - started < 0.6
        assert sent(proxy, verb) == 1
        assert (caught.value.sent, caught.value.slow) == (True, fault in SILENT)
        assert isinstance(caught.value.__cause__, OSError)
        after = {
            "create": (b"first", b"created"),
            "swap": (b"swapped", None),
            "remove": (None,) * 2,
            "append": (b"first\nline", None),
        }
        before = (b"first", None)
        expected = after[verb] if fault in DONE else before
        assert (record_of(direct), record_of(direct, "bob")) == expected
        assert record_of(store) == expected[0], "the next command is in step with its reply"

    @pytest.mark.parametrize("fault", BREAKS)
    def test_a_read_is_sent_again_when_the_connection_breaks(
        self, store: RedisStore, direct: RedisStore, proxy: FaultProxy, fault: Fault
    ) -> None:
        direct.create("ann", b"first", 60)
        with proxy.fault(BEGINNINGS["read"], fault):
            stored = store.read("ann")
        assert stored is not None
        assert stored.record == b"first"
        assert sent(proxy, "read") == 2

    @pytest.mark.parametrize("fault", SILENT)
    def test_but_not_when_there_is_no_reply(
        self, store: RedisStore, direct: RedisStore, proxy: FaultProxy, fault: Fault
    ) -> None:
        """It would take twice as long, and a hanging server would hang again."""
        direct.create("ann", b"first", 60)
        with proxy.fault(BEGINNINGS["read"], fault), pytest.raises(StoreUnavailable) as caught:
            store.read("ann")
        assert sent(proxy, "read") == 1
        assert (caught.value.sent, caught.value.slow) == (True, True)

    def test_once_more_only(self, store: RedisStore, proxy: FaultProxy) -> None:
        with (
            proxy.fault(BEGINNINGS["read"], Fault.CUT_AFTER),
            proxy.fault(CLIENT, Fault.CUT_BEFORE),  # the beginning of a new connection
            pytest.raises(StoreUnavailable) as caught,
        ):
            store.read("ann")
        assert sent(proxy, "read") == 1
        assert caught.value.sent, "the first of the two may have been executed"

    def test_a_late_command_is_carried_out_late(
        self, store: RedisStore, direct: RedisStore, proxy: FaultProxy
    ) -> None:
        with (
            proxy.fault(BEGINNINGS["create"], Fault.DELAY),
            pytest.raises(StoreUnavailable) as caught,
        ):
            store.create("ann", b"late", 60)
        assert caught.value.slow
        assert record_of(store) is None
        proxy.deliver()
        assert record_of(direct) == b"late"

    def test_a_read_in_a_hurry_waits_less_long_on_a_connection_of_its_own(
        self, store: RedisStore, direct: RedisStore, proxy: FaultProxy
    ) -> None:
        direct.create("ann", b"first", 60)
        before = len(proxy._sockets)
        stored = store.read("ann", hurry=True)
        assert stored is not None
        assert len(proxy._sockets) == before + 2
        started = time.monotonic()
        with (
            proxy.fault(BEGINNINGS["read"], Fault.SWALLOW),
            pytest.raises(StoreUnavailable) as caught,
        ):
            store.read("ann", hurry=True)
        assert time.monotonic() - started < 0.25
        assert caught.value.slow

    def test_an_interrupt_leaves_no_connection_out_of_step(
        self, store: RedisStore, direct: RedisStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        direct.create("ann", b"first", 60)

        def interrupted(*_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Stream, "receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.append("ann", b"\nline")
        assert store.create("ann", b"second", 60) is None
        assert record_of(store) == b"first\nline"
