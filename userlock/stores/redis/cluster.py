"""Leases in a Redis Cluster: each lock in its slot, each node as one Redis.

    lock id ──▶ key ──▶ slot (CRC16) ──▶ primary ──▶ its own pool and breaker
                                            │
              MOVED: another has the slot ──┤──▶ sent there; the map is read again
              ASK: the slot just moves    ──┘──▶ sent there once, after ASKING

A lock is one key, so nothing spans two slots. A redirection says that the command
was not carried out: it may be sent again. A node that fails tells nothing of the
kind, so the caller learns of it as with one server, and the breaker of that node
alone opens. Before a node that has failed is asked again, another one is asked for
the map: if a replica was promoted, the next command goes there.

redis-py's `RedisCluster` and `NodesManager` are not used. They block, and connect by
themselves and to all nodes, with retries and time-outs of their own; they send a command
again whose reply was lost; and one dead node costs each request its time-outs.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as _SLOTS
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError

from userlock.clock import SYSTEM_CLOCK
from userlock.lock.store import Stored, StoreUnavailable
from userlock.stores.keys import check_prefix
from userlock.stores.redis.connections import Connection, Connections
from userlock.stores.redis.store import RedisStore, fence_script, fenced
from userlock.stores.stream import Refused, number
from userlock.waits import run

#: How often one command is redirected.
_MOST_REDIRECTIONS = 5
#: The map is read once in so long, at most, in seconds.
_REFRESH_SECONDS = 1.0
#: How many nodes are asked for the map at a time.
_MOST_ASKED = 3
#: By how much a fence grows with each epoch: 19 hours, in microseconds.
_EPOCH_BITS = 36

# MOVED is an ASK. There is no TRYAGAIN, which is for commands of several keys.
_REDIRECTIONS = (AskError, ClusterDownError)

_FENCE = fence_script("redis.call('cluster', 'info'):match('cluster_my_epoch:(%d+)'),")

_Addresses = list[tuple[str, int]]


class Node(Connections):
    """The connections of this process to one node."""

    any_address = True  # a name of several nodes: they redirect, and tell the map

    def __init__(self, address: tuple[str, int], number: int, pool: Any, **options: Any) -> None:
        super().__init__(pool, **options)
        self.address = address
        self.number = number  # never another node's
        self.failed = False  # to answer the last time


class ClusterConnections:
    """The connections of this process to the nodes of a cluster. Thread-safe; survives fork.

    Exchanges are those of a pool, with the key first. The redis-py pool's kind of connection and
    options are used for each node.
    """

    def __init__(self, pool: Any, seeds: Sequence[tuple[str, int]], **options: float) -> None:
        self._pool = pool
        self._options = options
        self._numbers = itertools.count(1)
        self._nodes: dict[tuple[str, int], Node] = {}
        self._seeds = [self._node(each) for each in seeds]
        self._slots: list[Node | None] = [None] * _SLOTS
        self._mapped: set[Node] = set()  # until it is known: none
        self._refresh_at = 0.0
        self.name = ", ".join(node.name for node in self._seeds)

    def _node(self, address: tuple[str, int]) -> Node:
        node = self._nodes.get(address)
        if node is None:
            host, port = address
            pool = SimpleNamespace(
                connection_class=self._pool.connection_class,
                connection_kwargs={**self._pool.connection_kwargs, "host": host, "port": port},
            )
            node = Node(address, next(self._numbers), pool, **self._options)
        return self._nodes.setdefault(address, node)

    def node_of(self, key: bytes) -> Node | None:
        """Return the node that has the key, as far as is known."""
        return self._slots[key_slot(key)]

    def primaries(self) -> list[Node]:
        """Return all nodes that have slots; `StoreUnavailable` if they are not known."""
        run(self._refresh)
        return list(dict.fromkeys(node for node in self._slots if node is not None))

    def drop_idle(self) -> None:
        for node in list(self._nodes.values()):
            node.drop_idle()

    async def apart(self) -> Connection:
        """Return a connection to any node, which is in no pool."""
        nodes = list(self._mapped or self._seeds)
        return await random.choice([node for node in nodes if not node.failed] or nodes).apart()

    async def exchange(self, checked: bool, exchange: Any, key: bytes, *args: Any) -> Any:
        return await self._follow(Node.exchange, checked, exchange, key, *args)

    async def ask_to_read(self, hurry: bool, exchange: Any, key: bytes, *args: Any) -> Any:
        return await self._follow(Node.ask_to_read, hurry, exchange, key, *args)

    async def _follow(self, ask: Any, how: bool, exchange: Any, key: bytes, *args: Any) -> Any:
        """Return the answer of the node that has the key, wherever it is."""
        slot = key_slot(key)
        node = self._slots[slot]
        if node is None or node.failed:
            await self._refresh()
            node = self._slots[slot]
        if node is None:
            raise _unavailable(self.name, f"no node has slot {slot}")
        first = node
        source: Node | None = None  # from which the slot just moves to the other one
        for _ in range(_MOST_REDIRECTIONS):
            try:
                answer = await ask(node, how, _answered, source, exchange, key, *args)
            except StoreUnavailable as trouble:
                node.failed = node.failed or not (trouble.serves_others or trouble.of_demand)
                # Of the one that has redirected us it tells nothing.
                trouble.serves_others = trouble.serves_others or node is not first
                raise
            if not isinstance(answer, redis.RedisError):
                node.failed = False
                return answer
            source = None
            match answer:
                case MovedError():
                    node = self._slots[slot] = self._node(_address(answer, node))
                    await self._refresh(node)
                case AskError():
                    node, source = self._node(_address(answer, node)), node
                case _:
                    node.failed = True  # the whole cluster is down, as it sees it
                    raise _unavailable(node.name, str(answer))
        raise _unavailable(node.name, f"slot {slot} is sent from node to node", serves_others=True)

    # --- the map ----------------------------------------------------------------------------

    async def _refresh(self, first: Node | None = None) -> None:
        """Read the map from a node that answers, unless that was done a moment ago."""
        now = SYSTEM_CLOCK.now()
        if self._mapped and now < self._refresh_at:
            return
        self._refresh_at = now + _REFRESH_SECONDS
        nodes = list(self._nodes.values())
        random.shuffle(nodes)
        # A seed that is no node of the cluster any more comes last, but for those that have failed:
        # all nodes may have left for other addresses.
        mapped = self._mapped
        nodes.sort(key=lambda node: (node is not first, 2 if node.failed else node not in mapped))
        trouble: StoreUnavailable | None = None
        for node in nodes[:_MOST_ASKED]:
            try:
                rows = await node.ask_to_read(False, _slots)
            except StoreUnavailable as error:
                node.failed, trouble = True, error
                continue
            node.failed = False
            self._take(rows, node)
            return
        if not self._mapped and trouble is not None:  # no node has told the map yet
            trouble.sent = False  # nothing of the caller's was
            raise trouble

    def _take(self, rows: Iterable[tuple[int, int, _Addresses]], said: Node) -> None:
        """Take a map: the first and last of some slots, and their nodes, the primary first."""
        slots: list[Node | None] = [None] * _SLOTS
        mapped: set[Node] = set()
        for first, last, addresses in rows:
            nodes = [self._node((host or said.address[0], port)) for host, port in addresses]
            slots[first : last + 1] = nodes[:1] * (last + 1 - first)
            mapped.update(nodes)
        self._slots, self._mapped = slots, mapped
        for address, node in list(self._nodes.items()):
            if node not in mapped and node not in self._seeds:
                self._nodes.pop(address, None)
                node.drop_idle()


def _unavailable(name: str, reason: str, *, serves_others: bool = False) -> StoreUnavailable:
    return StoreUnavailable(f"redis at {name}: {reason}", sent=False, serves_others=serves_others)


def _address(redirection: AskError, node: Node) -> tuple[str, int]:
    """Return where a redirection leads. One without a host is to the same host."""
    if not 0 < redirection.port < 65536:
        raise _unavailable(node.name, "it redirects to a port that does not exist")
    return redirection.host or node.address[0], redirection.port


async def _answered(connection: Connection, source: Node | None, exchange: Any, *args: Any) -> Any:
    """Return the answer of an exchange, a redirection too: the connection is fine."""
    connection.asking = source
    try:
        return await exchange(connection, *args)
    except _REDIRECTIONS as redirection:
        return redirection
    finally:
        connection.asking = None


async def _slots(connection: Connection) -> list[tuple[int, int, _Addresses]]:
    reply = await connection.call(b"CLUSTER", b"SLOTS")
    if not isinstance(reply, list) or not reply:
        raise Refused("it answered CLUSTER SLOTS without slots")
    rows = []
    for row in reply:
        match row:
            case [int(first), int(last), *nodes] if 0 <= first <= last < _SLOTS and nodes:
                rows.append((first, last, [_named(each) for each in nodes]))
            case _:
                raise Refused("it answered CLUSTER SLOTS with something else than slots")
    return rows


def _named(node: Any) -> tuple[str, int]:
    match node:
        case [bytes() | None as host, int(port), *_] if 0 < port < 65536:
            return (host or b"").decode("ascii", "replace"), port
    raise Refused("it answered CLUSTER SLOTS with something else than nodes")


# --- the store ----------------------------------------------------------------------------------


class ClusterStore(RedisStore):
    """A lease store in a Redis Cluster. Thread-safe; survives fork.

    As `RedisStore`; a lock id with braces is hashed. The client's options are used for each node.
    `seeds`: hosts and ports of some nodes, or of an endpoint that names them.
    """

    connections: ClusterConnections  # type: ignore[assignment]

    def __init__(self, client: Any, seeds: Sequence[tuple[str, int]], **options: Any) -> None:
        self._seeds = seeds
        super().__init__(client, **options)
        check_prefix(self.prefix, also="{}")

    def _connect(self, pool: Any, connect_timeout: float, timeout: float) -> None:
        self.connections = ClusterConnections(
            pool, self._seeds, connect_timeout=connect_timeout, timeout=timeout
        )

    def shard_of(self, lock_id: str) -> int:
        node = self.connections.node_of(self.key(lock_id))
        return 0 if node is None else node.number

    def key(self, lock_id: str) -> bytes:
        key = super().key(lock_id)
        if b"{" in key or b"}" in key:  # Redis would take a part of the key for the slot
            return self._hashed(lock_id)
        return key

    async def afence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        """Append; the number is the time in microseconds, and 19 hours more for each epoch.

        Whenever slots get another primary, the cluster gives it an epoch above all others.
        """
        found: tuple[Stored, int] | None
        found = await self.connections.exchange(True, _fence, self.key(lock_id), line)
        return found


async def _fence(connection: Connection, key: bytes, line: bytes) -> tuple[Stored, int] | None:
    # A node to which a slot just moves gets an epoch above all others with the slot, or has it.
    least = 0
    if isinstance(connection.asking, Node):
        least = 1 + await connection.asking.exchange(True, _epoch)
    match await _FENCE.run(connection, key, line):
        case [now, bytes(epoch), record]:
            found = fenced([now, record])
            assert found is not None
            return found[0], (max(number(epoch), least) << _EPOCH_BITS) + found[1]
        case reply:
            return fenced(reply)


async def _epoch(connection: Connection) -> int:
    reply = await connection.call(b"CLUSTER", b"INFO")
    found = re.search(rb"cluster_my_epoch:(\d{1,18})\b", reply if isinstance(reply, bytes) else b"")
    if found is None:
        raise Refused("it answered CLUSTER INFO without its epoch")
    return int(found[1])
