"""The number of connections, and their age: it decides whether a CAS number is trusted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.connections import take
from tests.waiting import until
from userlock.lock.store import NoConnection, StoreUnavailable, waiting_attempt
from userlock.stores import MemcacheStore
from userlock.stores.memcache.connections import Connection, Connections
from userlock.stores.pool import Turns
from userlock.stores.stream import Place
from userlock.waits import Bell, run


class Client:
    """A client like pymemcache's, as far as a connection needs it."""

    def __init__(self, while_connecting: Callable[[], object] = lambda: None) -> None:
        self.sock, self.server = socket.socketpair()
        self._while_connecting = while_connecting

    def set_many(self, values: dict[str, bytes], *, noreply: bool) -> None:
        """Connect: the answer to the question for the version is there already."""
        assert not values
        assert noreply
        self._while_connecting()
        self.server.sendall(b"VERSION 1.6.18\r\n")

    def close(self) -> None:
        self.sock.close()
        self.server.close()


def pool_of(client_factory: Callable[[], Client], **options: Any) -> Connections:
    pool = Connections(
        ("127.0.0.1", 11211),
        **{"connect_timeout": 0.1, "timeout": 10, "via_proxy": True, **options},
    )
    pool._client = lambda timeout: client_factory()  # type: ignore[method-assign]
    return pool


def test_a_connection_established_after_a_version_is_younger_than_it() -> None:
    """Even one begun earlier: the server may have been restarted while it was made.

    we                           memcached
    begin to connect
    (another thread: version 1)
                                 restarts
    connected to the new server  version 1 is another's here
    """
    got: list[int] = []
    pool = pool_of(lambda: Client(lambda: got.append(pool.latest)))
    connection = run(pool.make)
    assert connection.number > got[0]
    connection.close()


def test_a_malformed_reply_is_refused() -> None:
    class Nonsense(Client):
        def set_many(self, values: dict[str, bytes], *, noreply: bool) -> None:
            self.server.sendall(b"VA what c1\r\n")

    store = MemcacheStore()
    store.connections = pool_of(lambda: Nonsense(lambda: None))
    with pytest.raises(StoreUnavailable, match="VA what"):
        store.read("ann")


# --- how many there are -------------------------------------------------------------------------


class Counted(Client):
    open = most_open = 0
    _lock = threading.Lock()

    def __init__(self) -> None:
        with Counted._lock:
            Counted.open += 1
            Counted.most_open = max(Counted.most_open, Counted.open)
        super().__init__()

    def close(self) -> None:
        with Counted._lock:
            Counted.open -= 1
        super().close()


@pytest.mark.parametrize(("most", "seen"), [(8, 8), (64, 64)], ids=["bounded", "not bounded"])
def test_many_threads_share_the_connections_that_there_may_be(
    most: int, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bound as large as the number of threads, each has its own."""
    monkeypatch.setattr(Counted, "open", 0)
    monkeypatch.setattr(Counted, "most_open", 0)
    monkeypatch.setattr("userlock.stores.pool.PATIENCE", 60.0)
    pool = pool_of(Counted, most=most)
    all_taken = threading.Semaphore(0)
    go_on = threading.Event()

    def use(_: int) -> None:
        for _ in range(2):
            connection = take(pool)
            all_taken.release()
            go_on.wait(10)
            pool.give_back(connection)

    with ThreadPoolExecutor(64) as threads:
        done = threads.map(use, range(64))
        for _ in range(most):
            assert all_taken.acquire(timeout=10)
        while len(pool._waiters) < 64 - most:
            os.sched_yield()
        go_on.set()
        list(done)
    assert Counted.most_open == seen
    pool.drop_idle()
    assert Counted.open == 0


def test_a_failed_connection_takes_no_place() -> None:
    """Even while its error is kept."""
    errors = []

    class Unreachable(Client):
        def set_many(self, values: dict[str, bytes], *, noreply: bool) -> None:
            raise ConnectionRefusedError

    pool = pool_of(lambda: Unreachable(lambda: None), most=1, timeout=0)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError) as caught:
            take(pool)
        errors.append(caught)


def ask_while_another_one_fails(at_line: int) -> None:
    """Ask a pool for a connection; at this line of it, another thread cannot make its own."""
    may_fail = threading.Event()

    class Fails(Client):
        def set_many(self, values: dict[str, bytes], *, noreply: bool) -> None:
            assert may_fail.wait(30)
            raise ConnectionRefusedError

    clients: list[type[Client]] = [Client, Client, Fails, Client]
    pool = pool_of(lambda: clients.pop(0)(), most=4)
    held = [take(pool) for _ in range(2)]
    lines = 0

    def count(_: object, event: str, __: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if event == "line" and lines == at_line:
            places = len(pool._taken)
            may_fail.set()
            while len(pool._taken) == places:
                os.sched_yield()
        return count

    with ThreadPoolExecutor(1) as threads:
        failing = threads.submit(take, pool)
        while clients != [Client]:
            os.sched_yield()
        sys.settrace(count)
        try:
            held.append(take(pool))
        finally:
            sys.settrace(None)
            may_fail.set()
        assert isinstance(failing.exception(30), ConnectionRefusedError)
    for connection in held:
        pool.close(connection)


def test_another_thread_may_fail_to_connect_at_any_line() -> None:
    for line in range(1, 60):
        ask_while_another_one_fails(line)


def test_a_waiting_attempt_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a connection, too: it times out instead of asking late."""
    pool = pool_of(lambda: Client(), most=1)
    held = take(pool)
    waits = []

    class Noting(Bell):
        async def sleep(self, seconds: float) -> None:
            waits.append(seconds)

    class Attempt:
        left = 0.25

    monkeypatch.setattr("userlock.stores.pool.Bell", Noting)
    attempt = Attempt()
    set_back = waiting_attempt.set(weakref.ref(attempt))
    try:
        with pytest.raises(NoConnection):
            take(pool)
    finally:
        waiting_attempt.reset(set_back)
    assert waits == [0.25]
    pool.close(held)


def test_a_forked_child_has_no_more_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("userlock.stores.pool.PATIENCE", 0)
    turns = Turns[Place](1)
    turns.give_back(run(turns.take))
    turns._begin()  # as in a child
    taken = run(turns.take)
    with pytest.raises(NoConnection):
        run(turns.take)
    turns.give_back(taken)


def test_a_closed_connection_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("userlock.stores.pool.PATIENCE", 0)
    pool = pool_of(lambda: Client(), most=1, timeout=0)
    closed = take(pool)
    pool.close(closed)
    held = take(pool)
    with pytest.raises(NoConnection, match="all 1 connections are in use"):
        take(pool)
    pool.close(held)


def test_a_closed_connection_lets_a_waiting_thread_make_one() -> None:
    pool = pool_of(lambda: Client(), most=1)
    held = take(pool)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(take, pool)
        while not pool._waiters:
            os.sched_yield()
        pool.close(held)
        pool.close(waiting.result(10))


@pytest.mark.parametrize("close", [True, False])
def test_what_a_cancelled_task_was_given_is_handed_on(close: bool) -> None:
    """The place of a closed connection, or a connection that was given back."""
    pool = pool_of(lambda: Client(), most=1)

    async def main() -> None:
        held = run(pool.make)
        first, second = (asyncio.create_task(pool.make(or_idle=True)) for _ in range(2))
        await until(lambda: len(pool._waiters) == 2)
        (pool.close if close else pool.give_back)(held)
        first.cancel()
        pool.close(await second)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_pool_gets_the_connection_of_a_task_that_is_cancelled() -> None:
    may_connect = threading.Event()

    def connected() -> Client:
        assert may_connect.wait(30)
        return Client()

    pool = pool_of(connected, most=1)

    async def main() -> None:
        task = asyncio.create_task(pool.make())
        await until(lambda: len(pool._taken) == 1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert pool.idle == []
        may_connect.set()
        await until(lambda: len(pool.idle) == 1)

    asyncio.run(asyncio.wait_for(main(), 30))
    pool.drop_idle()


def test_a_task_that_asks_apart_does_not_block_the_others() -> None:
    """The thread that has made the connection would have waited for the reply itself."""
    client = Client()
    client.server.setblocking(False)
    pool = pool_of(lambda: client)

    def asked() -> bool:
        with contextlib.suppress(BlockingIOError):
            return client.server.recv(4096).endswith(b"mn\r\n")
        return False

    async def exchange(connection: Connection) -> bytes:
        return await connection.ask(b"mn\r\n")

    async def main() -> bytes:
        asking = asyncio.create_task(pool.ask_apart(exchange, 5.0))
        await until(asked)
        client.server.sendall(b"MN\r\n")
        return await asking

    assert asyncio.run(asyncio.wait_for(main(), 30)) == b"MN"


def test_a_closed_store_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "open", 0)
    store = MemcacheStore()
    store.connections = pool_of(Counted)
    store.connections.give_back(run(store.connections.make, 1))
    assert Counted.open == 1
    store.close()
    assert Counted.open == 0


def test_a_new_connection_takes_the_place_of_an_idle_one() -> None:
    pool = pool_of(lambda: Client(), most=1, timeout=0)
    idle = take(pool)
    pool.give_back(idle)
    fresh = run(pool.make)
    assert fresh is not idle
    pool.close(fresh)


# --- commands -----------------------------------------------------------------------------------

#: More than the buffers of both ends take.
LONG = os.urandom(1 << 20) * 8


def test_a_long_command_arrives_in_full() -> None:
    client = Client()
    received = bytearray()

    def read() -> None:
        while len(received) < len(LONG):
            received.extend(client.server.recv(65536))

    wire = Connection(client, 30)
    reader = threading.Thread(target=read)
    reader.start()
    run(wire.send, LONG)
    reader.join()
    assert bytes(received) == LONG
    client.close()


def test_a_server_that_does_not_read_is_a_timeout() -> None:
    client = Client()
    wire = Connection(client, 0.01)
    with pytest.raises(TimeoutError):
        run(wire.send, LONG)
    with pytest.raises(TimeoutError):  # with no room from the start
        run(wire.send, b"mn\r\n")
    client.close()


def test_a_closed_connection_sends_nothing_to_the_file_that_gets_its_number() -> None:
    client = Client()
    wire = Connection(client, 30)
    number = client.sock.fileno()
    wire.close()
    reader, writer = os.pipe()
    os.dup2(writer, number)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            run(wire.send, b"mn\r\n")
    finally:
        for each in {reader, writer, number}:
            os.close(each)


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), False),  # the command may be carried out later
        (BlockingIOError(), False),
        (ValueError(), False),  # a fault of the library
    ],
)
def test_what_may_be_sent_on_another_connection(error: Exception, broken: bool) -> None:
    errors = [error]

    async def exchange(_: Connection) -> str:
        if errors:
            raise errors.pop()
        return "read"

    answer = "failed"
    with contextlib.suppress(StoreUnavailable, ValueError):
        answer = run(pool_of(Client).ask_to_read, False, exchange)
    assert answer == ("read" if broken else "failed")
