"""Wake-ups through a real Redis, and all that may keep them from coming."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import redis

from tests.servers import RedisServer, redis_store
from tests.waiting import wait_until
from userlock import LockService
from userlock.events import Listeners
from userlock.lock.lease import new_token
from userlock.lock.policy import LockPolicy, Polling, PriorityPolicy
from userlock.lock.store import LeaseStore, StoreUnavailable, WakeUps
from userlock.stores.redis import RedisStore
from userlock.stores.redis import wake_ups as module
from userlock.stores.redis.connections import Connection
from userlock.stores.redis.wake_ups import RedisWakeUps
from userlock.testing import ManualClock
from userlock.waits import Bell, run

PATIENCE = 20.0
#: Waiters that rely on wake-ups: their polls come far too late for these tests.
SELDOM = LockPolicy(
    interactive=PriorityPolicy(polling=Polling(least_seconds=5.0, most_seconds=5.0))
)


@pytest.fixture
def connect(redis_server: RedisServer, prefix: str) -> Iterator[Callable[..., LockService]]:
    """Provide services on one Redis, each as of a process of its own."""
    made = []

    def service(options: str = "", policy: LockPolicy | None = SELDOM) -> LockService:
        url = f"{redis_server.url}?prefix={prefix}{options}"
        made.append(LockService(redis_store(url), policy=policy, listeners=Listeners()))
        return made[-1]

    yield service
    for each in made:
        each.close()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_server.url)
    yield client
    client.close()


class Waiter(threading.Thread):
    """A thread that waits for the lock of ann; its times are of the monotonic clock."""

    def __init__(self, service: LockService) -> None:
        super().__init__()
        self._service = service
        self.granted_at = 0.0
        self.start()

    def run(self) -> None:
        lease = self._service.acquire("ann", wait_timeout=PATIENCE)
        self.granted_at = time.monotonic()
        self._service.release(lease)


def subscribers(client: Any, prefix: str) -> int:
    channels = client.pubsub_channels(f"{prefix}:wake:*")
    return sum(number for _, number in client.pubsub_numsub(*channels)) if channels else 0


def queued(service: LockService, number: int) -> Callable[[], bool]:
    return lambda: len(service.waiters("ann")) == number


@contextlib.contextmanager
def waiting(here: LockService, there: LockService) -> Iterator[Waiter]:
    """Hold the lock there while a thread waits for it here; afterwards the thread gets it."""
    lease = there.acquire("ann")
    waiter = Waiter(here)
    wait_until(queued(there, 1))
    yield waiter
    there.release(lease)
    waiter.join(PATIENCE)
    assert waiter.granted_at


def test_many_waiters_of_a_process_share_one_subscription(
    connect: Callable[..., LockService], client: Any, prefix: str
) -> None:
    here, there = connect(), connect()
    lease = there.acquire("ann")
    lives: list[threading.Thread] = []
    served: list[float] = []

    def wait() -> None:
        mine = here.acquire("ann", priority="batch", wait_timeout=PATIENCE)
        served.append(time.monotonic())
        here.release(mine)

    for number in range(8):
        lives.append(threading.Thread(target=wait))
        lives[-1].start()
        wait_until(queued(there, number + 1))
    assert subscribers(client, prefix) == 1
    began = time.monotonic()
    there.release(lease)
    for each in lives:
        each.join(PATIENCE)
    assert len(served) == 8
    assert served[-1] - began < 4.0, "each thread listened in its turn"


def test_a_cut_subscription_is_made_again(
    connect: Callable[..., LockService],
    client: Any,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    here, there = connect(policy=None), connect()
    for _ in range(2):
        with waiting(here, there):  # it polls
            client.client_kill_filter(_type="pubsub")
            wait_until(lambda: subscribers(client, prefix) == 0)
    with waiting(here, there):
        wait_until(lambda: subscribers(client, prefix) == 1)


def test_a_user_without_the_right_to_channels_polls(
    connect: Callable[..., LockService], client: Any, redis_server: RedisServer, prefix: str
) -> None:
    client.acl_setuser(
        prefix, enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"], reset=True
    )
    client.execute_command("ACL", "SETUSER", prefix, "resetchannels")
    url = f"redis://{prefix}:secret@{redis_server.address}/0?prefix={prefix}"
    here = LockService(redis_store(url), listeners=Listeners())
    with contextlib.closing(here), waiting(here, here):
        assert subscribers(client, prefix) == 0


def test_a_subscription_that_fails_is_tried_again_after_a_second(clock: ManualClock) -> None:
    tried = []

    async def connect() -> Connection:
        tried.append(clock.now())
        raise StoreUnavailable("down", sent=False)

    wake_ups = RedisWakeUps(connect, b"channel:", lambda _: None, clock.now)
    for pause in (0.0, 0.0, 0.9, 0.1):
        clock.advance(pause)
        run(wake_ups.begin, "ann", new_token(), Bell())
    assert [at - tried[0] for at in tried] == [0.0, pytest.approx(1.0)]


def test_a_subscription_that_tells_nothing_is_replaced_every_ten_seconds(
    clock: ManualClock,
) -> None:
    made = []

    async def connect() -> Connection:
        made.append(clock.now())
        return mock.Mock(call=mock.AsyncMock(), fileno=lambda: 0)

    wake_ups = RedisWakeUps(connect, b"channel:", lambda _: None, clock.now)
    for _ in range(25):
        run(wake_ups.begin, "ann", new_token(), Bell())
        wake_ups.missed()
        clock.advance(1.0)
    assert [at - made[0] for at in made] == [0.0, *(pytest.approx(at) for at in (3, 13, 23))]


def test_a_forked_child_subscribes_for_itself(
    connect: Callable[..., LockService], client: Any, prefix: str
) -> None:
    here, there = connect(), connect()
    with waiting(here, there):
        child = os.fork()
        if not child:  # pragma: no cover (in the child)
            status = 1
            try:
                here.release(here.acquire("ann", wait_timeout=PATIENCE))
                status = 0
            finally:
                os._exit(status)
        wait_until(queued(there, 2))
        wait_until(lambda: subscribers(client, prefix) == 2)
        began = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert time.monotonic() - began < 4.0, "the child was woken"


def test_a_process_that_was_paused_when_it_was_woken_restores_no_queue(
    connect: Callable[..., LockService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record that it was told is old: the other waiter has had the lock since, and is gone."""
    here, there, elsewhere = (connect(policy=None) for _ in range(3))
    runs, stands, rest = threading.Event(), threading.Event(), here.local_waiters.rest

    async def pausing(*args: Any) -> None:
        if not runs.is_set():
            stands.set()
            runs.wait(PATIENCE)
        await rest(*args)

    def knows() -> list[object]:
        reading = here.local_waiters.latest("ann")
        return [*reading.record.waiters()] if reading and reading.record else []

    monkeypatch.setattr(here.local_waiters, "rest", pausing)
    runs.set()
    lease = there.acquire("ann")
    paused = Waiter(here)
    wait_until(queued(there, 1))
    other = Waiter(elsewhere)
    wait_until(lambda: len(knows()) == 2)
    runs.clear()
    assert stands.wait(PATIENCE)
    there.release(lease)
    other.join(PATIENCE)
    assert other.granted_at
    assert there.look("ann") is None
    runs.set()
    paused.join(PATIENCE)
    assert paused.granted_at
    assert there.look("ann") is None, "and nothing is left behind"


def test_a_stopped_server_is_noticed(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that has gone silent is given up: wake-ups would be waited for in vain."""
    monkeypatch.setattr(module, "_QUIET_SECONDS", 0.1)
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.2)
    store = redis_store(own_redis.url)
    wake_ups = _of(store)
    token, bell = new_token(), Bell()
    bell.listen = wake_ups.wait
    run(wake_ups.begin, "ann", token, bell)
    come = []
    bell.wait(0.5)
    come.append(wake_ups.come)  # it answers when it is asked
    with own_redis.paused():
        bell.wait(1.0)
        come.append(wake_ups.come)
    assert come == [True, False]
    wake_ups.end(token)
    store.close()


def test_another_program_speaks_on_the_channel(
    connect: Callable[..., LockService], client: Any, prefix: str
) -> None:
    here, there = connect(policy=None), connect()
    with waiting(here, there):
        wait_until(lambda: subscribers(client, prefix) == 1)
        (channel,) = client.pubsub_channels(f"{prefix}:wake:*")
        for message in (b"", b"\xff\x00", b"x" * 100_000, b"somebody's token"):
            client.publish(channel, message)


def _of(store: LeaseStore) -> WakeUps:
    assert store.wake_ups is not None
    return store.wake_ups


def test_a_subscription_that_tells_nothing_is_replaced(
    connect: Callable[..., LockService], client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a fail-over: the old primary answers, and nobody publishes there any more."""
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    here, there = connect(policy=None), connect()
    store = there.store
    assert isinstance(store, RedisStore)
    monkeypatch.setattr(store, "_channel", b"another server:")

    def ids() -> set[str]:
        return {each["id"] for each in client.client_list(_type="pubsub")}

    before: set[str] = set()
    for number in range(5):
        with waiting(here, there):
            if not number:
                before = ids()
    monkeypatch.undo()
    for _ in range(20):
        with waiting(here, there):
            # (Of the other one too: it has waited for the lock itself, meanwhile.)
            wait_until(lambda: subscribers(client, prefix) and not ids() & before)
        if _of(here.store).come:
            return  # it is woken again; on a busy machine it may have looked before
    pytest.fail("it is not woken any more")


@pytest.mark.parametrize("closes_at_once", [False, True], ids=["", "the control"])
def test_a_subscription_is_closed_by_the_task_that_listens(
    connect: Callable[..., LockService], monkeypatch: pytest.MonkeyPatch, closes_at_once: bool
) -> None:
    """An event loop that watches its file number finds another file there, or aborts (uvloop)."""
    store = connect().store
    wake_ups = _of(store)
    assert isinstance(wake_ups, RedisWakeUps)
    if closes_at_once:
        monkeypatch.setattr(module._Line, "end", lambda line: line.connection.close())

    async def main() -> bool:
        token, bell = new_token(), Bell()
        await wake_ups.begin("ann", token, bell)
        line = wake_ups._line
        assert line is not None
        number = line.connection.fileno()
        listening = asyncio.create_task(wake_ups.await_(bell, PATIENCE))
        while line.listener is None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # it watches the number now
        for _ in range(3):
            wake_ups.missed()  # after so many it is given up
        found = number in _new_files()
        while number not in _new_files():
            await asyncio.sleep(0)  # until the task that listens has closed it
        bell.ring()
        await listening
        wake_ups.end(token)
        return found

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) is closes_at_once


def _new_files() -> set[int]:
    """Return the numbers that the next sockets get."""
    made = [socket.socket() for _ in range(20)]
    numbers = {each.fileno() for each in made}
    for each in made:
        each.close()
    return numbers
