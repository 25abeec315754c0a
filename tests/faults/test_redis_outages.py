"""A Redis that is restarted, killed, stopped or missing; unknown host names."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.servers import RedisServer
from userlock.lock.store import StoreUnavailable
from userlock.stores.redis import RedisStore

#: Each verb on the lock "ann", for a record of the given version.
VERBS: dict[str, Callable[[RedisStore, object], object]] = {
    "create": lambda store, version: store.create("ann", b"first", 60),
    "read": lambda store, version: store.read("ann"),
    "append": lambda store, version: store.append("ann", b"\nline"),
    "remove": lambda store, version: store.remove("ann", version),
    "swap": lambda store, version: store.swap("ann", version, b"swapped", 60),
}


class TestOutages:
    def test_a_restart_is_not_noticed_and_versions_from_before_do_not_match(
        self, own_redis: RedisServer
    ) -> None:
        store = RedisStore.from_url(own_redis.url)
        old = store.create("ann", b"first", 60)
        own_redis.restart()
        assert store.read("ann") is None
        assert store.create("ann", b"first", 60) is not None
        assert store.swap("ann", old, b"swapped", 60) is None
        assert not store.remove("ann", old)
        store.close()

    def test_a_server_that_is_gone_is_refused_at_once(self, own_redis: RedisServer) -> None:
        store = RedisStore.from_url(own_redis.url)
        version = store.create("ann", b"first", 60)
        own_redis.kill()
        with pytest.raises(StoreUnavailable):  # finds out that its connection has ended
            store.read("ann")
        for verb in VERBS.values():
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match="refused") as caught:
                verb(store, version)
            assert time.monotonic() - started < 0.2
            assert (caught.value.sent, caught.value.slow) == (False, False)

    @pytest.mark.parametrize("options", [{}, {"socket_timeout": 60}, {"socket_timeout": None}])
    def test_a_stopped_server_costs_the_librarys_time_outs_with_any_client(
        self, own_redis: RedisServer, options: dict[str, Any]
    ) -> None:
        with redis.Redis(port=own_redis.port, **options) as client:
            store = RedisStore(client)
            store.create("ann", b"first", 60)
            with own_redis.paused():
                for connect in (False, True):  # on the idle connection, and on a new one
                    started = time.monotonic()
                    with pytest.raises(StoreUnavailable, match=r"timed out|Timeout") as caught:
                        store.create("ann", b"second", 60)
                    assert time.monotonic() - started < 2
                    assert caught.value.sent is not connect
            store.close()

    def test_a_server_that_is_no_primary_any_more_is_left(self, own_redis: RedisServer) -> None:
        """A new connection may lead to the new primary, whichever verb has detected it."""
        store = RedisStore.from_url(own_redis.url)
        version = store.create("ann", b"first", 60)
        with redis.Redis(port=own_redis.port) as client:
            client.replicaof("127.0.0.1", 1)
            with pytest.raises(StoreUnavailable, match="read only"):
                store.swap("ann", version, b"swapped", 60)
            assert store.connections.idle == []
            client.replicaof("NO", "ONE")
        assert store.swap("ann", version, b"swapped", 60) is not None
        store.close()

    def test_a_server_that_hangs_costs_one_time_out(self, own_redis: RedisServer) -> None:
        store = RedisStore.from_url(own_redis.url)
        version = store.create("ann", b"first", 60)
        with own_redis.paused():
            started = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                store.swap("ann", version, b"swapped", 60)
            assert 0.25 < time.monotonic() - started < 0.5
            assert (caught.value.sent, caught.value.slow) == (True, True)
            started = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                store.read("ann", hurry=True)
            assert time.monotonic() - started < 0.25
        store.close()

    def test_a_connection_that_is_not_made_in_time_was_not_used(self) -> None:
        """A full backlog: the kernel answers no connection."""
        with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
            address = listener.getsockname()
            crowd = [socket.socket() for _ in range(4)]
            for one in crowd:
                one.setblocking(False)
                one.connect_ex(address)
            store = RedisStore.from_url(f"redis://127.0.0.1:{address[1]}")
            started = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                store.create("ann", b"first", 60)
            assert time.monotonic() - started < 0.3
            assert (caught.value.sent, caught.value.slow) == (False, False)
            for one in crowd:
                one.close()

    @pytest.mark.parametrize(
        "reply",
        [
            *(b":abc\r\n", b"$abc\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\r\n"),
            *(
                b"*1\r\n:1\r\n",
                b"*2\r\n:1\r\n:2\r\n",
                b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
                b"$2\r\nab\r\n",
            ),
            *(
                b"-ERR no\r\n",
                b"*2\r\n$1\r\na\r\n$-1\r\n",
                b"%1\r\n+a\r\n+b\r\n",
                b"",
                b"+QUEUED\r\n",
            ),
        ],
    )
    @pytest.mark.parametrize("verb", VERBS)
    def test_a_server_that_is_no_redis_says_nothing(
        self, redis_server: RedisServer, prefix: str, verb: str, reply: bytes
    ) -> None:
        real = RedisStore.from_url(f"{redis_server.url}?prefix={prefix}")
        version = real.create("ann", b"first", 60)
        real.close()
        with Babbler(reply) as babbler:
            store = RedisStore.from_url(f"redis://127.0.0.1:{babbler.port}")
            with pytest.raises(StoreUnavailable, match=re.escape(f"127.0.0.1:{babbler.port}")):
                VERBS[verb](store, version)
            store.close()


class TestNames:
    def test_names_are_looked_up(self, redis_server: RedisServer, prefix: str) -> None:
        store = RedisStore.from_url(f"redis://localhost:{redis_server.port}?prefix={prefix}")
        assert store.create("ann", b"first", 60)
        store.close()

    @pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 64, "."])
    def test_a_name_that_is_not_known_is_an_outage(self, name: str) -> None:
        store = RedisStore.from_url(f"redis://{name}:6379")
        with pytest.raises(StoreUnavailable, match="cannot find") as caught:
            store.create("ann", b"first", 60)
        assert not caught.value.sent

    @pytest.mark.parametrize("scheme", ["redis", "rediss"])
    def test_a_look_up_that_hangs_does_not_hang_the_caller(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, scheme: str
    ) -> None:
        answer = threading.Event()
        look_up = socket.getaddrinfo

        def slow(*args: Any, **kwargs: Any) -> Any:
            answer.wait(10)
            return look_up(*args, **kwargs)

        monkeypatch.setattr("userlock.stores.address.socket.getaddrinfo", slow)
        store = RedisStore.from_url(f"{scheme}://localhost:{redis_server.port}?prefix=slow-name")
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match="look-up") as caught:
            store.read("ann")
        assert time.monotonic() - started < 0.3
        assert (caught.value.sent, caught.value.slow) == (False, False)
        # A forked child has no use for a reply that its parent waits for.
        child = os.fork()
        if child == 0:
            code = 1
            try:
                monkeypatch.undo()
                code = 0 if scheme == "rediss" or store.read("ann") is None else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        answer.set()
        assert os.waitstatus_to_exitcode(status) == 0
        store.close()


class Babbler:
    """A server that answers any command with the same bytes; without bytes it hangs up."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Babbler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    while (data := connection.recv(65536)) and self._reply:
                        connection.sendall(b"+OK\r\n" if b"CLIENT" in data else self._reply)
                except OSError:
                    continue
