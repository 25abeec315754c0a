"""The store contract on real Redis and Valkey clusters, and their particulars."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest
from redis.crc import key_slot

import userlock
from tests.authority import Authority
from tests.clusters import RedisCluster, valkey_server
from tests.contract.stores.verbs import use
from tests.leases import existing
from userlock.admin.health import Verdict, examine
from userlock.admin.redis import list_locks
from userlock.lock.lease import new_token
from userlock.lock.store import StoreUnavailable
from userlock.stores.redis import ClusterStore, cluster
from userlock.stores.urls import open_store
from userlock.testing import (
    FenceContract,
    ForkContract,
    RaceContract,
    TimeContract,
    VerbContract,
    WakeContract,
)
from userlock.waits import Bell, run

_PATIENT = "&socket_connect_timeout=5&socket_timeout=5"


def store_on(there: RedisCluster, options: str = "", prefix: str = "") -> ClusterStore:
    store = open_store(there.url(prefix or uuid.uuid4().hex, _PATIENT + options))
    assert isinstance(store, ClusterStore)
    return store


@pytest.fixture(scope="session")
def valkey_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("valkey"), binary=valkey_server()) as there:
        yield there


@pytest.fixture
def store(redis_cluster: RedisCluster) -> Iterator[ClusterStore]:
    with contextlib.closing(store_on(redis_cluster)) as store:
        yield store


class TestRedisCluster(VerbContract, RaceContract, ForkContract, FenceContract, WakeContract):
    @pytest.fixture
    def store(self, store: ClusterStore) -> ClusterStore:
        return store


def test_each_verb_on_valkey(valkey_cluster: RedisCluster) -> None:
    with contextlib.closing(store_on(valkey_cluster)) as store:
        use(store)


def test_each_verb_that_waits_for_a_replica(redis_cluster: RedisCluster) -> None:
    with contextlib.closing(store_on(redis_cluster, "&wait_replicas=1")) as store:
        use(store)


@pytest.mark.slow
class TestRedisClusterInTime(TimeContract):
    @pytest.fixture
    def store(self, store: ClusterStore) -> ClusterStore:
        return store


# --- slots --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock_id", ["ann", "{ann}", "a{b}c", "}{", "{}", "}", "x" * 1500, "ü{漢"])
def test_a_lock_id_with_braces_is_used_as_others(store: ClusterStore, lock_id: str) -> None:
    assert store.create(lock_id, b"[]\n+i waits", 60) is not None
    assert store.append_and_wake(lock_id, b"\n- holder") is not None


@pytest.mark.parametrize("at_a_time", [5, 1000])
def test_the_locks_are_spread(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    monkeypatch.setattr("userlock.admin.redis._SCAN_COUNT", at_a_time)
    made = {f"ann-{number}": store.create(f"ann-{number}", b"[]", 60) for number in range(60)}
    assert all(made.values())
    assert len({store.shard_of(each) for each in made}) == 3
    assert {each.name for each in list_locks(store, 1000).locks} == set(made)


# --- redirections -------------------------------------------------------------------------------


class _Move:
    def __init__(self, there: RedisCluster, slot: int) -> None:
        self.there, self.slot = there, slot
        self.source = there.owner(slot)
        self.target = next(node for node in there.primaries() if node is not self.source)

    def begin(self) -> None:
        self.there.begin_to_move(self.slot, self.target)

    def keys(self) -> None:
        self.there.move_keys(self.slot, self.source, self.target)

    def end(self) -> None:
        self.there.end_move(self.slot, self.target)


#: The steps after which each verb is tried.
STEPS = [("begin",), ("begin", "keys"), ("begin", "keys", "end")]


@pytest.fixture
def moved(redis_cluster: RedisCluster) -> Iterator[Callable[[ClusterStore, str], _Move]]:
    """Provide a lock's slot that moves, and goes back afterwards."""
    moves: list[_Move] = []

    def move(store: ClusterStore, lock_id: str) -> _Move:
        moves.append(_Move(redis_cluster, key_slot(store.key(lock_id))))
        return moves[-1]

    yield move
    for each in moves:
        each.keys()
        each.end()


@pytest.mark.parametrize("steps", STEPS, ids=" ".join)
@pytest.mark.parametrize("wait", ["", "&wait_replicas=1"])
def test_each_verb_while_its_slot_moves(
    redis_cluster: RedisCluster, moved: Any, steps: tuple[str, ...], wait: str
) -> None:
    with contextlib.closing(store_on(redis_cluster, wait)) as store:
        _each_verb(store, moved, steps)


def _each_verb(store: ClusterStore, moved: Any, steps: tuple[str, ...]) -> None:
    version = existing(store.create("ann", b"first", 60))
    move = moved(store, "ann")
    for step in steps:
        getattr(move, step)()
    assert existing(store.read("ann")).record == b"first"
    assert store.swap("ann", version, b"second", 60) is not None
    assert store.swap("ann", version, b"third", 60) is None
    appended = existing(store.append_and_wake("ann", b"\n- holder"))
    assert store.swap("ann", appended.version, b"fourth", 60) is not None
    fenced = existing(store.fence("ann", b"\n#"))
    assert fenced[0].record == b"fourth\n#"
    assert store.remove("ann", fenced[0].version)
    assert store.create("ann", b"fifth", 60) is not None
    assert store.create("ann", b"sixth", 60) is None


def test_each_verb_fails_if_redirections_are_ignored(
    store: ClusterStore, moved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    assert store.read("nobody's") is None  # it knows the map
    monkeypatch.setattr(cluster, "_REDIRECTIONS", ())
    for steps in STEPS[1:]:
        with pytest.raises(StoreUnavailable, match="node of a cluster"):
            _each_verb(store, moved, steps)


def test_a_map_that_is_all_wrong_is_mended(store: ClusterStore) -> None:
    """As after many slots were moved: one redirection is enough for all."""
    assert store.read("nobody's") is None
    connections = store.connections
    nodes = connections.primaries()
    connections._slots[:] = [nodes[0]] * len(connections._slots)
    connections._refresh_at = 0.0
    ids = [f"ann-{number}" for number in range(20)]
    assert [store.read(each) for each in ids] == [None] * 20
    assert len({store.shard_of(each) for each in ids}) == 3


def test_the_last_slot_has_a_node(store: ClusterStore) -> None:
    lock_id = next(each for each in map(str, count()) if key_slot(store.key(each)) == 16383)
    assert store.read(lock_id) is None


def test_numbers_of_fences_grow_while_the_slot_moves_to_and_fro(
    store: ClusterStore, redis_cluster: RedisCluster
) -> None:
    assert store.create("ann", b"first", 60) is not None
    numbers: list[int] = []

    def fence() -> None:
        numbers.append(existing(store.fence("ann", b"\n#"))[1])

    fence()
    for _ in range(3):
        move = _Move(redis_cluster, key_slot(store.key("ann")))
        for step in (move.begin, move.keys, move.end):
            step()
            fence()
            fence()
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 1 << 63


def _node(port: int) -> bytes:
    return b"*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$2\r\nid\r\n" % port


@pytest.mark.parametrize(
    "reply",
    [
        *(b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*1\r\n:1\r\n", b"*1\r\n*2\r\n:0\r\n:9\r\n"),
        *(b"*0\r\n", b"-ERR This instance has cluster support disabled\r\n"),
        b"*1\r\n*3\r\n:0\r\n:16384\r\n" + _node(1),
        b"*1\r\n*3\r\n:9\r\n:0\r\n" + _node(1),
        b"*1\r\n*3\r\n:0\r\n:16383\r\n" + _node(65536),
        b"*1\r\n*3\r\n:0\r\n:16383\r\n:1\r\n",
        b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n:1\r\n:1\r\n",
        b"*1\r\n*3\r\n:0\r\n:16383\r\n" + _node(1),  # nobody is there
    ],
)
def test_a_map_of_something_else_is_an_outage(reply: bytes) -> None:
    store, _ = _answered_by(lambda _: reply)
    with contextlib.closing(store), pytest.raises(StoreUnavailable) as caught:
        store.read("ann")
    assert not caught.value.sent


def test_a_fence_of_something_else_is_an_outage() -> None:
    def answer(command: bytes) -> bytes:
        if b"SLOTS" in command:
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n" + _node(port)
        return b"+OK\r\n"

    store, port = _answered_by(answer)
    with contextlib.closing(store), pytest.raises(StoreUnavailable):
        store.fence("ann", b"\n#")


@pytest.mark.parametrize(
    ("redirection", "says"),
    [
        (b"-MOVED 1 127.0.0.1:%d", "from node to node"),
        (b"-ASK 1 127.0.0.1:%d", "from node to node"),
        (b"-MOVED 1 :%d", "from node to node"),  # on the same host
        (b"-MOVED 1 127.0.0.1:1", "refused"),
        (b"-MOVED 1 127.0.0.1:65536", "does not exist"),
        (b"-CLUSTERDOWN Hash slot not served", "CLUSTERDOWN|not served"),
        (b"-MOVED nowhere", "unpack"),  # whatever that means
    ],
)
def test_redirections_that_lead_nowhere_end(redirection: bytes, says: str) -> None:
    """None of them was carried out."""

    def answer(command: bytes) -> bytes:
        if b"SLOTS" in command:
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n" + _node(port)
        asked = b"+OK\r\n" * (b"ASKING" in command)
        return asked + (redirection % port if b"%d" in redirection else redirection) + b"\r\n"

    store, port = _answered_by(answer)
    with contextlib.closing(store), pytest.raises(StoreUnavailable, match=says) as caught:
        store.create("ann", b"[]", 60)
    assert caught.value.sent is (says == "unpack")
    # The node that redirects is no worse than before.
    assert caught.value.serves_others is (says in ("from node to node", "refused"))


def _answered_by(answer: Callable[[bytes], bytes]) -> tuple[ClusterStore, int]:
    node = _Scripted(answer)
    store = _store_of([node])
    weakref.finalize(store, node.listener.close)
    return store, node.port


def _store_of(nodes: list[_Scripted]) -> ClusterStore:
    seeds = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    store = open_store(f"redis+cluster://{seeds}?prefix=test{_PATIENT}")
    assert isinstance(store, ClusterStore)
    return store


class _Scripted:
    """A server that answers each command in some way, and hangs up for None."""

    def __init__(self, answer: Callable[[bytes], bytes | None]) -> None:
        self.answer = answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        #: Set when a connection has ended.
        self.left = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while (command := connection.recv(65536)) and (answer := self.answer(command)):
                connection.sendall(answer)
        self.left.set()


class TestTheMap:
    """Of two nodes: the first has all slots, until the map says something else."""

    @pytest.fixture
    def there(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Self]:
        monkeypatch.setattr("random.shuffle", lambda nodes: None)
        self.asked: list[int] = []
        self.dead: set[int] = set()
        self.moved = False
        self.nodes = [_Scripted(partial(self.answer, number)) for number in (0, 1)]
        self.named = list(self.nodes)
        self.store = _store_of(self.nodes)
        self.connections = self.store.connections
        with contextlib.closing(self.store):
            yield self
        for node in self.nodes:
            node.listener.close()

    def answer(self, number: int, command: bytes) -> bytes | None:
        if b"SLOTS" in command:
            self.asked.append(number)
        if number in self.dead:
            return None
        if b"SLOTS" not in command:
            moved = self.moved and number == 0
            return b"-MOVED 1 127.0.0.1:%d\r\n" % self.nodes[1].port if moved else b"$-1\r\n"
        addresses = b"".join(_node(node.port) for node in self.named)
        return b"*1\r\n*%d\r\n:0\r\n:16383\r\n%b" % (2 + len(self.named), addresses)

    def read(self) -> None:
        """Read a record, after so long that the map may be asked for."""
        self.connections._refresh_at = 0.0
        assert self.store.read("ann") is None

    def test_it_is_asked_for_once(self, there: Self) -> None:
        for _ in range(5):
            there.read()
        assert there.asked == [0]

    def test_after_a_failure_another_node_tells_it(self, there: Self) -> None:
        there.read()
        there.dead.add(0)
        with pytest.raises(StoreUnavailable):
            there.read()
        there.named.reverse()  # the second one was promoted
        there.read()
        assert there.asked == [0, 1]

    def test_a_node_that_takes_slots_over_tells_it(self, there: Self) -> None:
        there.read()
        there.moved = True
        there.read()
        assert there.asked == [0, 1]

    def test_a_seed_that_is_no_node_any_more_is_asked_last(self, there: Self) -> None:
        there.named.remove(there.nodes[0])
        there.read()
        there.connections._refresh_at = 0.0
        run(there.connections._refresh)
        assert there.asked == [0, 1]

    def test_a_seed_is_asked_again_when_all_nodes_have_left(self, there: Self) -> None:
        """The whole cluster was down, and is back at other addresses."""
        later = _Scripted(partial(there.answer, 2))
        former = [_Scripted(partial(there.answer, number)) for number in (3, 4, 5)]
        there.named = former
        with contextlib.closing(_store_of(there.nodes[:1])) as store:
            assert store.read("ann") is None
            there.dead |= {0, 3, 4, 5}
            for _ in range(4):
                store.connections._refresh_at = 0.0
                with pytest.raises(StoreUnavailable):
                    store.read("ann")
            there.dead.remove(0)
            there.named = [later]
            store.connections._refresh_at = 0.0
            assert store.read("ann") is None
        for node in (later, *former):
            node.listener.close()

    def test_any_address_of_a_seed_will_do(
        self, there: Self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A discovery service names all nodes; the first one is down."""
        look_up = socket.getaddrinfo

        def several(host: Any, *args: Any, **kwargs: Any) -> Any:
            hosts = ("127.0.0.9", "127.0.0.1") if host == "nodes.internal" else (host,)
            return [each for one in hosts for each in look_up(one, *args, **kwargs)]

        monkeypatch.setattr("socket.getaddrinfo", several)
        url = f"redis+cluster://nodes.internal:{there.nodes[0].port}?prefix=test{_PATIENT}"
        with contextlib.closing(open_store(url)) as store:
            assert store.read("ann") is None

    def test_a_node_that_works_again_is_asked_for_no_map(self, there: Self) -> None:
        there.read()
        there.dead.add(0)
        with pytest.raises(StoreUnavailable):
            there.read()
        there.dead.clear()
        for _ in range(5):
            there.read()
        assert there.asked == [0, 1]

    def test_a_node_that_has_left_is_let_go(self, there: Self) -> None:
        third = _Scripted(partial(there.answer, 2))
        there.named = [third]
        there.read()
        there.named = there.nodes
        there.connections._refresh_at = 0.0
        run(there.connections._refresh)
        assert third.left.wait(10), "a connection to it stays open"
        third.listener.close()
        assert len(there.connections._nodes) == 2


# --- replicas -----------------------------------------------------------------------------------


def test_a_lease_that_too_few_replicas_have_is_none(redis_cluster: RedisCluster) -> None:
    """It counts as an outage, and is taken back."""
    url = redis_cluster.url(uuid.uuid4().hex, "&wait_replicas=2&socket_timeout=1")
    service = userlock.LockService.from_url(url, outage="fail")
    with contextlib.closing(service):
        with pytest.raises(userlock.LockServiceUnavailable, match="1 of 2 replicas"):
            service.acquire("ann")
        assert service.client.pending
        with contextlib.closing(open_store(url)) as store:
            assert store.read("ann") is not None
            service.client._when_due(service.clock.now())
            deadline = service.clock.now() + 30
            while store.read("ann") is not None and service.clock.now() < deadline:
                service.client._when_due(service.clock.now())
                service.clock.sleep(0.05)
            assert store.read("ann") is None


# --- wake-ups -----------------------------------------------------------------------------------


@pytest.mark.parametrize("listens", range(6))
def test_any_node_passes_a_wake_up_on(
    redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch, listens: int
) -> None:
    """Wherever the lock's slot is, and wherever it moves."""
    monkeypatch.setattr("random.choice", lambda nodes: sorted(nodes, key=lambda n: n.name)[listens])
    with contextlib.closing(store_on(redis_cluster)) as store:
        assert store.read("ann") is None  # it knows the map
        WakeContract().test_a_release_wakes_the_first_waiter(store)


def test_waiters_hear_after_their_slot_has_moved(
    store: ClusterStore, redis_cluster: RedisCluster
) -> None:
    token, bell = new_token(), Bell()
    assert store.wake_ups is not None
    assert store.create("ann", b"[]\n+i " + token.encode(), 60) is not None
    run(store.wake_ups.begin, "ann", token, bell)
    move = _Move(redis_cluster, key_slot(store.key("ann")))
    for step in (move.begin, move.keys, move.end):
        step()
    store.append_and_wake("ann", b"\n- holder")
    store.wake_ups.wait(bell, 30)
    assert bell.answer()[0], "the store has not woken it"
    store.wake_ups.end(token)


def test_a_node_that_fails_is_not_asked_for_wake_ups(store: ClusterStore) -> None:
    assert store.read("ann") is None
    nodes = store.connections.primaries()
    for node in store.connections._mapped:
        node.failed = node is not nodes[0]
    connection = run(store.connections.apart)
    assert connection._raw.port == nodes[0].address[1]
    connection.close()


# --- rights, rows of the documentation ----------------------------------------------------------


def test_the_rights_in_the_documentation_suffice(redis_cluster: RedisCluster) -> None:
    page = (Path(__file__).parents[3] / "docs/deploy.md").read_text()
    said = re.search(r"ACL:\s+`([^`]+)`", page)
    also = re.search(r"clusters need\s+`([^`]+)`", page)
    assert said is not None
    assert also is not None
    prefix = uuid.uuid4().hex
    rights = f"{said[1]} {also[1]}".replace("PREFIX", prefix).split()
    for node in redis_cluster.nodes:
        node.ask("ACL", "SETUSER", prefix, "reset", "on", ">secret", *rights)
    url = redis_cluster.url(prefix, _PATIENT).replace("://", f"://{prefix}:secret@")
    service = userlock.LockService.from_url(url, outage="fail")
    with contextlib.closing(service), userlock.scope(service) as scope:
        assert scope.acquire("ann").fence > 0
        bell = Bell()
        assert service.store.wake_ups is not None
        run(service.store.wake_ups.begin, "ann", "token", bell)
        assert service.store.wake_ups.come
        scope.release("ann")
        scope.acquire("ann", heartbeat=True).extend(10)
    assert Verdict.WRONG not in {each.verdict for each in examine(service.store)}


def test_over_tls_with_a_password(tmp_path: Path) -> None:
    """Each node is another `localhost`; its certificate is checked, also after a redirection."""
    authority = Authority(tmp_path)
    with RedisCluster(tmp_path / "nodes", primaries=2, replicas=0, authority=authority) as there:
        for node in there.nodes:
            node.ask("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
        trusted = f"{_PATIENT}&ssl_ca_certs={authority.certificate}"
        url = f"valkeys+cluster://app:secret@localhost:{there.tls_ports[1]}?prefix=test"
        with contextlib.closing(open_store(url + trusted)) as store:
            ids = [f"ann-{number}" for number in range(20)]
            assert all(store.create(each, b"[]", 60) for each in ids)
            assert len({store.shard_of(each) for each in ids}) == 2
            bell = Bell()
            assert store.wake_ups is not None
            run(store.wake_ups.begin, "ann-1", "token", bell)
            assert store.wake_ups.come
        with (
            contextlib.closing(open_store(url + _PATIENT)) as store,
            pytest.raises(StoreUnavailable, match="verify") as caught,
        ):
            store.read("ann-1")
        assert not caught.value.sent


@pytest.mark.parametrize(
    "scheme", ["redis+cluster", "valkey+cluster", "rediss+cluster", "valkeys+cluster"]
)
def test_each_scheme_opens_a_cluster(scheme: str) -> None:
    assert isinstance(open_store(f"{scheme}://a:1,b,[::1]:3"), ClusterStore)
