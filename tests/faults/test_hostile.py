"""Slow, endless and malformed replies at each step of each protocol.

Each call ends in time as `StoreUnavailable`, takes a bounded number of bytes, and hurts no other
server, service or later call.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import redis

from tests.faults.hostile import HostileServer, Reply, real_server
from tests.servers import Memcached, RedisServer
from userlock.errors import LockServiceUnavailable
from userlock.events import Listeners
from userlock.lock.service import LockService
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.stores import MemcacheStore, ShardedMemcacheStore, stream
from userlock.stores.redis import RedisStore
from userlock.stores.stream import MOST_BYTES, Stream

#: Far less than the slow replies take, and far more than the store's time-outs.
BOUND_SECONDS = 2.0
#: What a client may take of a reply, and the buffers of both ends.
BOUND_BYTES = MOST_BYTES + (24 << 20)
RECORD = b"first"
#: Goes on for hours.
SLOW = {
    "meta": Reply("slow", b"VA 900000 c7 t60\r\n", b"x", slow=True),
    "text": Reply("slow", b"VALUE key 0 900000 7\r\n", b"x", slow=True),
    "redis": Reply("slow", b"$900000\r\n", b"x", slow=True),
}
#: Begins no reply of any kind, and never ends a line.
SLOW_LINE = Reply("a slow line", repeat=b"x", slow=True)
HUGE = {
    "meta": Reply("huge", b"VA 300000000 c7 t60\r\n", b"x" * 65_536),
    "text": Reply("huge", b"VALUE key 0 300000000 7\r\n", b"x" * 65_536),
    "redis": Reply("huge", b"$300000000\r\n", b"x" * 65_536),
}
READS = {"meta": b"mg ", "text": b"gets ", "redis": b"EVAL"}
KINDS = tuple(READS)

Verb = Callable[[LeaseStore, str, object], object]
VERBS: dict[str, Verb] = {
    "create": lambda store, lock_id, version: store.create(lock_id, b"second", 60),
    "read": lambda store, lock_id, version: store.read(lock_id),
    "read in a hurry": lambda store, lock_id, version: store.read(lock_id, hurry=True),
    "swap": lambda store, lock_id, version: store.swap(lock_id, version, b"next", 60),
    "remove": lambda store, lock_id, version: store.remove(lock_id, version),
    "append": lambda store, lock_id, version: store.append(lock_id, b"\nline"),
}


class Step(NamedTuple):
    """A command of a verb.

    Attributes:
        kind: of the store.
        verb: one of `VERBS`.
        command: bytes of its packet.
        new: it belongs to the handshake of a new connection.
    """

    kind: str
    verb: str
    command: bytes
    new: bool = False

    def __str__(self) -> str:
        return f"{self.kind}, {self.verb}: {self.command.decode().strip()}"


STEPS = [
    *(
        Step("meta", *step)
        for step in (
            *(("create", b"ms "), ("read", b"mg "), ("read in a hurry", b"mg ")),
            *(("swap", b"ms "), ("remove", b"md "), ("append", b"ms ")),
            *(("create", b"version", True), ("create", b"stats", True), ("swap", b"mg ", True)),
        )
    ),
    *(
        Step("text", *step)
        for step in (
            *(("create", b"add "), ("read", b"gets "), ("read in a hurry", b"gets ")),
            *(("swap", b"cas "), ("remove", b"cas "), ("append", b"append ")),
            *(("create", b"version", True), ("create", b"stats", True), ("swap", b"gets ", True)),
        )
    ),
    *(
        Step("redis", *step)
        for step in (
            *(("create", b"SET"), ("read", b"EVAL"), ("read in a hurry", b"EVAL")),
            *(("swap", b"EVAL"), ("remove", b"EVAL"), ("append", b"EVAL")),
            *(("create", b"AUTH", True), ("create", b"SETNAME", True)),
            ("create", b"SELECT", True),
        )
    ),
]
#: Replies that are as well formed as those that the step expects, and mean something there.
LEGAL = {
    ("meta", b"stats"): {"an error"},
    ("text", b"stats"): {"an error"},
}


@contextlib.contextmanager
def hostile_server(request: pytest.FixtureRequest, kind: str) -> Iterator[HostileServer]:
    with HostileServer(real_server(request, kind).port) as server:
        yield server


@contextlib.contextmanager
def store_on(server: HostileServer, kind: str, timeout: float = 0.3) -> Iterator[LeaseStore]:
    prefix = uuid.uuid4().hex
    store: LeaseStore
    if kind == "redis":
        client = redis.Redis(
            port=server.port, db=3, username="app", password="secret", client_name="app"
        )
        store = RedisStore(client, prefix=prefix, timeout=timeout)
    else:
        store = MemcacheStore(server.address, prefix=prefix, protocol=kind, timeout=timeout)
    with contextlib.closing(store):
        yield store


@pytest.fixture(scope="module")
def _user(redis_server: RedisServer) -> None:
    """A user with a password, so that the handshake has all its steps."""
    with redis.Redis(port=redis_server.port) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all")


def prepared(store: LeaseStore) -> tuple[str, object]:
    """Return a lock with a record, and its version; the machine may be busy."""
    for _ in range(5):
        lock_id = uuid.uuid4().hex
        with contextlib.suppress(StoreUnavailable):
            version = store.create(lock_id, RECORD, 60)
            stored = store.read(lock_id)
            assert stored is not None
            assert stored.record == RECORD
            return lock_id, version
    raise AssertionError("the server does not answer")


def meet(server: HostileServer, store: LeaseStore, step: Step, reply: Reply) -> str | None:
    """Let a verb meet a hostile reply; return what was wrong."""
    server.answered = 0
    for _ in range(5):  # a busy machine may be too slow to ask
        lock_id, version = prepared(store)
        if step.new:
            store.close()
        started = time.monotonic()
        with server.answering(reply, step.command):
            try:
                outcome: object = VERBS[step.verb](store, lock_id, version)
            except Exception as error:
                outcome = error
            took = time.monotonic() - started
        if server.answered:
            break
    if took > BOUND_SECONDS:
        return f"took {took:.1f} s"
    if not server.answered:
        return f"was not asked: {outcome!r}"
    if server.sent > BOUND_BYTES:
        return f"took {server.sent:,} bytes"
    if isinstance(outcome, StoreUnavailable):
        in_doubt = outcome.sent and outcome.slow
        if reply.name == "silence" and not step.new and not in_doubt:
            return "a change that may yet be carried out was not reported so"
        return None
    handshake = step.kind == "redis" and step.new
    if handshake and reply.framed and not isinstance(outcome, Exception):
        return None  # redis-py goes on without a name for the library
    if reply.name in LEGAL.get((step.kind, step.command), ()):
        return None
    return f"ended as {outcome!r}"


@pytest.mark.usefixtures("_user")
@pytest.mark.parametrize(
    ("step", "only_quick"),
    [
        *(pytest.param(step, True, id=f"{step}, quick") for step in STEPS if not step.new),
        *(pytest.param(step, False, id=str(step), marks=pytest.mark.slow) for step in STEPS),
    ],
)
def test_each_hostile_reply_is_an_outage_in_time(
    request: pytest.FixtureRequest, step: Step, only_quick: bool
) -> None:
    """The quick ones are replies to another command."""
    with hostile_server(request, step.kind) as server, store_on(server, step.kind) as store:
        found = {
            reply.name: meet(server, store, step, reply)
            for reply in Reply.to(step.kind)
            if reply.framed or not only_quick
        }
        prepared(store)
    assert {name: wrong for name, wrong in found.items() if wrong is not None} == {}


# --- the negative controls ----------------------------------------------------------------------


def test_without_the_deadline_a_slow_reply_goes_on(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "meta"
    monkeypatch.setattr(Stream, "_hurry", lambda _: None)
    with (
        ThreadPoolExecutor(1) as thread,
        hostile_server(request, kind) as server,
        store_on(server, kind) as store,
    ):
        lock_id, _ = prepared(store)
        with server.answering(SLOW[kind], READS[kind]):
            reading = thread.submit(store.read, lock_id)
            with pytest.raises(TimeoutError):
                reading.result(timeout=BOUND_SECONDS)
            server.stop_answering()
            with contextlib.suppress(StoreUnavailable):  # or it is read again, with success
                reading.result(timeout=30)


@pytest.mark.usefixtures("_user")
def test_without_the_bound_a_huge_reply_is_taken(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "redis"
    monkeypatch.setattr(stream, "MOST_VALUE_BYTES", 1 << 30)
    monkeypatch.setattr(stream, "MOST_BYTES", 1 << 30)
    with hostile_server(request, kind) as server, store_on(server, kind, timeout=3) as store:
        lock_id, _ = prepared(store)
        with server.answering(HUGE[kind], READS[kind]), pytest.raises(StoreUnavailable):
            store.read(lock_id)
        assert server.sent > BOUND_BYTES


# --- through the service ------------------------------------------------------------------------


def service_on(store: LeaseStore, outage: str = "optimistic") -> LockService:
    return LockService(store, outage=outage, listeners=Listeners())


@pytest.mark.usefixtures("_user")
@pytest.mark.parametrize("kind", KINDS)
def test_a_free_lock_is_granted_degraded_or_refused_in_time(
    request: pytest.FixtureRequest, kind: str
) -> None:
    for reply in (SLOW[kind], SLOW_LINE, HUGE[kind]):
        with (
            hostile_server(request, kind) as server,
            store_on(server, kind) as store,
            server.answering(reply),
        ):
            started = time.monotonic()
            service = service_on(store)
            lease = service.acquire("learner-1", wait_timeout=1)
            assert lease.degraded
            service.release(lease)
            with pytest.raises(LockServiceUnavailable):
                service_on(store, "fail").acquire("learner-1", wait_timeout=1)
            assert time.monotonic() - started < 2 * BOUND_SECONDS


# --- neighbours ---------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 4], ids=["new connections", "old connections"])
def test_of_three_servers_a_hostile_one_hurts_no_locks_of_the_others(
    memcached: Memcached, after: int
) -> None:
    prefix = uuid.uuid4().hex
    with contextlib.ExitStack() as open_ones:
        servers = [open_ones.enter_context(HostileServer(memcached.port)) for _ in range(3)]
        store = ShardedMemcacheStore(
            [MemcacheStore(each.address, prefix=prefix) for each in servers]
        )
        open_ones.callback(store.close)
        other = MemcacheStore(memcached.address, prefix=f"{prefix}-other")
        open_ones.callback(other.close)
        service, neighbour = service_on(store), service_on(other)
        of_shard: list[list[str]] = [[], [], []]
        for number in range(60):
            lock_id = f"learner-{number}"
            of_shard[store.shard_of(lock_id)].append(lock_id)
        bad, *good = of_shard
        with servers[0].answering(SLOW_LINE, after=after), ThreadPoolExecutor(2) as threads:
            hurt = threads.submit(lambda: [service.acquire(each) for each in bad[:4]])
            for lock_id in (*good[0][:8], *good[1][:8]):
                assert_undegraded(service, lock_id)
                assert_undegraded(neighbour, lock_id)
            leases = hurt.result(timeout=30)
            assert any(lease.degraded for lease in leases)
            assert servers[0].answered


def assert_undegraded(service: LockService, lock_id: str) -> None:
    lease = service.acquire(lock_id)
    assert not lease.degraded
    service.release(lease)
