"""Leases in a Redis Cluster: each lock in its slot, each node as one Redis.

    lock id ──▶ key ──▶ slot (CRC16) ──▶ primary ──▶ its own pool, breaker and wake-ups
                                            │
              MOVED: another has the slot ──┤──▶ sent there; the map is read again
              ASK: the slot just moves    ──┘──▶ sent there once, after ASKING

A lock is one key, so nothing spans two slots. A redirection says that the command
was not carried out: it may be sent again. A node that fails tells nothing of the
kind, so the caller learns of it as with one server, and the breaker of that node
alone opens. Before a node that has failed is asked again, another one is asked for
the map: if a replica was promoted, the next command goes there.

A node of a cluster passes on what concerns its own slots (sharded pub/sub). There
each waiter has a channel of its own, in the slot of its lock, so the scripts may
publish on it wherever the slot moves. The waiter that listens subscribes for the
others. A node that gives a slot away ends the subscription, which rings the bell:
the waiter polls, learns of the new node, and subscribes there.

From redis-py come the slot of a key, the errors with their addresses, and
connections. Its `RedisCluster` and `NodesManager` are not used. They block, and
connect by themselves and to all nodes, with retries and time-outs of their own; they
send a command again whose reply was lost; and one dead node costs each request its
time-outs. So the map, its renewal and the redirections stand here.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as _SLOTS
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from userlock.clock import SYSTEM_CLOCK
from userlock.fork import reset_in_child
from userlock.lock.store import Stored, StoreUnavailable, WakeUps
from userlock.stores.keys import check_prefix
from userlock.stores.pool import REPLY_TIMEOUT
from userlock.stores.redis.connections import Command, Connection, Connections
from userlock.stores.redis.store import (
    FENCE_BODY,
    RedisStore,
    Script,
    fenced,
    stored,
    wake_script,
)
from userlock.stores.redis.url import Named
from userlock.stores.redis.wake_ups import RedisWakeUps
from userlock.stores.stream import Refused, number
from userlock.waits import Bell, pause, run

#: How often one command is redirected.
_MOST_REDIRECTIONS = 5
#: The map is read once in so long, at most, in seconds.
_REFRESH_SECONDS = 1.0
#: How many nodes are asked for the map at a time.
_MOST_ASKED = 3
#: Pause before a command is sent again to a node that asks for it, in seconds.
_TRY_AGAIN_SECONDS = 0.01
#: By how much a fence grows with each epoch: 19 hours, in microseconds.
_EPOCH_BITS = 36

#: The slots and keys that are at hand: a lock is used twice, at least.
_MOST_KEPT = 1000
_slot = functools.lru_cache(_MOST_KEPT)(key_slot)

_REDIRECTIONS = (AskError, ClusterDownError, TryAgainError)  # MOVED is an ASK

_WAKE = wake_script("'spublish', ARGV[2] .. first")
_FENCE = Script(
    FENCE_BODY.replace(
        "redis.call('time'),",
        "redis.call('time'), redis.call('cluster', 'info'):match('cluster_my_epoch:(%d+)'),",
    )
)


class NodeWakeUps(RedisWakeUps):
    """The wake-ups of this process from one node of a cluster, by sharded pub/sub.

    A channel is what begins it, up to a brace, and the token of one waiter.
    """

    def _start_again(self) -> None:
        super()._start_again()
        #: By token; and those on which the node has said that we are subscribed.
        self._channels: dict[bytes, bytes] = {}
        self._subscribed: set[bytes] = set()
        #: The commands that the one that listens has to send, by channel.
        self._unsent: dict[bytes, str] = {}

    async def begin_on(self, channel: bytes, token: str, bell: Bell) -> bool:
        """Ring the bell when the waiter is next, or when its slot has moved to another node.

        Args:
            channel: begins the name of the waiter's channel.
            token: the waiter's.
            bell: the waiter's.

        Returns:
            Whether the waiter is subscribed.
        """
        name = token.encode()
        self._bells[name], self._channels[name] = bell, channel + name
        if self._line is None:
            if self._now() >= self._retry_at:
                await self._subscribe(channel + name)
        else:
            self._unsent[channel + name] = "SSUBSCRIBE"
            listener = self._line.listener
            if listener is not None:
                listener.stir()
            await self._until(
                lambda: bell.rung or self._line is None or self.hears(token), bell, REPLY_TIMEOUT
            )
        return self.hears(token)

    def hears(self, token: str) -> bool:
        """Return whether a waiter is subscribed."""
        return self._line is not None and self._channels.get(token.encode()) in self._subscribed

    async def _begin_on(self, connection: Connection, channel: bytes) -> None:
        """Subscribe for all waiters. The others look at their locks: a message may be lost."""
        self._unsent.clear()
        self._subscribed.clear()
        channels = dict(self._channels)
        replies = await connection.ask_all([("SSUBSCRIBE", each) for each in channels.values()])
        for (name, each), reply in zip(channels.items(), replies, strict=True):
            if not isinstance(reply, redis.RedisError):
                self._subscribed.add(each)
            elif each == channel:
                raise reply
            bell = self._bells.get(name)
            if bell is not None and each != channel:
                bell.ring()

    def end(self, token: str) -> None:
        channel = self._channels.pop(token.encode(), None)
        if channel is not None and self._unsent.pop(channel, None) is None and self._line:
            self._unsent[channel] = "SUNSUBSCRIBE"
        super().end(token)

    async def _send(self, connection: Connection) -> None:
        while self._unsent:
            try:
                channel, command = self._unsent.popitem()
            except KeyError:  # another waiter has ended
                return
            connection.begin()
            await connection.send(command, channel)

    def _other(self, reply: Any) -> None:
        """Note who is subscribed. Let waiters look that hear nothing any more."""
        match reply:
            case [b"ssubscribe", bytes(channel), _]:
                self._subscribed.add(channel)
                bell = self._of(channel)
                if bell is not None:
                    bell.stir()
            case [b"sunsubscribe", bytes(channel), _]:
                self._subscribed.discard(channel)
                bell = self._of(channel)
                if bell is not None:
                    bell.ring()
            case redis.RedisError():  # refused: of which channel, it does not say
                for bell in list(self._bells.values()):
                    bell.ring()

    def _of(self, channel: bytes) -> Bell | None:
        return self._bells.get(channel.rpartition(b"}")[2])


class Node(Connections):
    """The connections of this process to one node.

    Attributes:
        address: its host and port.
        number: never another node's.
        failed: it did not answer the last time.
        wake_ups: those from it.
    """

    def __init__(self, address: tuple[str, int], number: int, pool: Any, **options: Any) -> None:
        super().__init__(pool, **options)
        self.address = address
        self.number = number
        self.failed = False
        self.wake_ups = NodeWakeUps(self.apart, b"", stored)

    def give_up(self) -> None:
        """Close the connections that stand idle, and the subscription."""
        self.drop_idle()
        self.wake_ups.close()


class ClusterConnections:
    """The connections of this process to the nodes of a cluster. Thread-safe; survives fork.

    Exchanges are those of a pool, with the key first.

    Args:
        pool: a redis-py pool, whose kind of connection and options are used for each node.
        seeds: hosts and ports of nodes, or of an endpoint that names them.
        connect_timeout: in seconds.
        timeout: for an exchange, in seconds.
    """

    def __init__(
        self,
        pool: Any,
        seeds: Sequence[tuple[str, int]],
        *,
        connect_timeout: float,
        timeout: float,
    ) -> None:
        self._connection_class = pool.connection_class
        self._kwargs = pool.connection_kwargs
        self._options: dict[str, Any] = {"connect_timeout": connect_timeout, "timeout": timeout}
        self._numbers = itertools.count(1)
        self._nodes: dict[tuple[str, int], Node] = {}
        self._seeds = [self._node(each) for each in seeds]
        self._slots: list[Node | None] = [None] * _SLOTS
        self._known = False
        self._mapped: set[Node] = set()
        self._refresh_at = 0.0
        self.name = ", ".join(node.name for node in self._seeds)

    def _node(self, address: tuple[str, int]) -> Node:
        node = self._nodes.get(address)
        if node is None:
            host, port = address
            pool = SimpleNamespace(
                connection_class=self._connection_class,
                connection_kwargs={**self._kwargs, "host": host, "port": port},
            )
            node = Node(address, next(self._numbers), pool, **self._options)
        return self._nodes.setdefault(address, node)

    def node_of(self, key: bytes) -> Node | None:
        """Return the node that has the key, as far as is known."""
        return self._slots[_slot(key)]

    def primaries(self) -> list[Node]:
        """Return all nodes that have slots; `StoreUnavailable` if they are not known."""
        run(self._refresh)
        return list(dict.fromkeys(node for node in self._slots if node is not None))

    def drop_idle(self) -> None:
        """Close the connections that stand idle, and the subscriptions."""
        for node in list(self._nodes.values()):
            node.give_up()

    # --- exchanges, as a pool has them --------------------------------------------------------

    async def exchange(self, checked: bool, exchange: Any, key: bytes, *args: Any) -> Any:
        return await self._follow(checked, None, exchange, key, *args)

    async def ask_to_read(self, exchange: Any, hurry: bool, key: bytes, *args: Any) -> Any:
        return await self._follow(False, hurry, exchange, key, *args)

    async def _follow(
        self, checked: bool, hurry: bool | None, exchange: Any, key: bytes, *args: Any
    ) -> Any:
        """Return the answer of the node that has the key, wherever it is; `hurry`: as to read."""
        slot = _slot(key)
        node = self._slots[slot]
        if node is None or node.failed:
            await self._refresh()
            node = self._slots[slot]
        if node is None:
            raise _unavailable(self.name, f"no node has slot {slot}")
        first = node
        asked: Any = _answered
        for _ in range(_MOST_REDIRECTIONS):
            try:
                if hurry is None:
                    answer = await node.exchange(checked, asked, exchange, key, *args)
                else:
                    answer = await node.ask_to_read(asked, hurry, exchange, key, *args)
            except StoreUnavailable as trouble:
                node.failed = node.failed or not (trouble.serves_others or trouble.of_demand)
                # Of the one that has redirected us it tells nothing.
                trouble.serves_others = trouble.serves_others or node is not first
                raise
            if not isinstance(answer, redis.RedisError):
                node.failed = False
                return answer
            asked = _answered
            match answer:
                case MovedError():
                    node = self._slots[slot] = self._node(_address(answer, node))
                    await self._refresh(node)
                case AskError():
                    asked = functools.partial(_asked, node)
                    node = self._node(_address(answer, node))
                case TryAgainError():
                    await pause(SYSTEM_CLOCK, _TRY_AGAIN_SECONDS)
                case _:
                    node.failed = True  # the whole cluster is down, as it sees it
                    raise _unavailable(node.name, str(answer))
        raise _unavailable(node.name, f"slot {slot} is sent from node to node", serves_others=True)

    # --- the map ----------------------------------------------------------------------------

    async def _refresh(self, first: Node | None = None) -> None:
        """Read the map from a node that answers, unless that was done a moment ago.

        Raises:
            StoreUnavailable: no node has told the map yet.
        """
        now = SYSTEM_CLOCK.now()
        if self._known and now < self._refresh_at:
            return
        self._refresh_at = now + _REFRESH_SECONDS
        nodes = list(self._nodes.values())
        random.shuffle(nodes)
        # A seed that is no node of the cluster any more comes last.
        nodes.sort(key=lambda node: (node is not first, node.failed, node not in self._mapped))
        trouble: StoreUnavailable | None = None
        for node in nodes[:_MOST_ASKED]:
            try:
                rows = await node.ask_to_read(_slots, False)
            except StoreUnavailable as error:
                node.failed, trouble = True, error
                continue
            node.failed = False
            self._take(rows, node)
            return
        if not self._known and trouble is not None:
            trouble.sent = False  # nothing of the caller's was
            raise trouble

    def _take(self, rows: Iterable[tuple[int, int, list[tuple[str, int]]]], said: Node) -> None:
        """Take a map: the first and last of some slots, and their nodes, the primary first."""
        slots: list[Node | None] = [None] * _SLOTS
        mapped: set[Node] = set()
        for first, last, addresses in rows:
            nodes = [self._node((host or said.address[0], port)) for host, port in addresses]
            slots[first : last + 1] = nodes[:1] * (last + 1 - first)
            mapped.update(nodes)
        self._slots, self._mapped, self._known = slots, mapped, True
        for address, node in list(self._nodes.items()):
            if node not in mapped and node not in self._seeds:
                self._nodes.pop(address, None)
                node.give_up()


def _unavailable(name: str, reason: str, *, serves_others: bool = False) -> StoreUnavailable:
    return StoreUnavailable(f"redis at {name}: {reason}", sent=False, serves_others=serves_others)


def _address(redirection: AskError, node: Node) -> tuple[str, int]:
    """Return where a redirection leads. One without a host is to the same host."""
    if not 0 < redirection.port < 65536:
        raise _unavailable(node.name, "it redirects to a port that does not exist")
    return redirection.host or node.address[0], redirection.port


async def _answered(connection: Connection, exchange: Any, *args: Any) -> Any:
    """Return the answer of an exchange, a redirection too: the connection is fine."""
    try:
        return await exchange(connection, *args)
    except _REDIRECTIONS as redirection:
        return redirection


async def _asked(source: Node, connection: Connection, exchange: Any, *args: Any) -> Any:
    """As `_answered`, of a node to which the slot just moves from another one."""
    return await _answered(_Asking(connection, source), exchange, *args)


class _Asking(Connection):
    """A connection whose every packet begins with ASKING."""

    def __init__(self, connection: Connection, source: Node) -> None:
        self._connection = connection
        self.source = source

    async def ask(self, *command: bytes | str | int) -> Any:
        (reply,) = await self.ask_all([command])
        if isinstance(reply, redis.RedisError):
            raise reply
        return reply

    async def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        return (await self._connection.ask_all([("ASKING",), *commands]))[1:]


async def _slots(connection: Connection) -> list[tuple[int, int, list[tuple[str, int]]]]:
    reply = await connection.ask("CLUSTER", "SLOTS")
    if not isinstance(reply, list) or not reply:
        raise Refused("it answered CLUSTER SLOTS without slots")
    return [_row(each) for each in reply]


def _row(row: Any) -> tuple[int, int, list[tuple[str, int]]]:
    match row:
        case [int(first), int(last), primary, *replicas] if 0 <= first <= last < _SLOTS:
            return first, last, [_named(each) for each in (primary, *replicas)]
    raise Refused("it answered CLUSTER SLOTS with something else than slots")


def _named(node: Any) -> tuple[str, int]:
    match node:
        case [bytes() | None as host, int(port), *_] if 0 < port < 65536:
            return (host or b"").decode("ascii", "replace"), port
    raise Refused("it answered CLUSTER SLOTS with something else than nodes")


# --- the store ----------------------------------------------------------------------------------


class ClusterStore(RedisStore):
    """A lease store in a Redis Cluster. Thread-safe; survives fork.

    Verbs, records and keys are those of `RedisStore`; a lock id with braces is hashed.

    Args:
        client: a `redis.Redis`, whose options are used for each node.
        seeds: hosts and ports of some nodes, or of an endpoint that names them.
        **options: as for `RedisStore`.
    """

    connections: ClusterConnections  # type: ignore[assignment]

    def __init__(self, client: Any, seeds: Sequence[tuple[str, int]], **options: Any) -> None:
        self._seeds = seeds
        super().__init__(client, **options)
        check_prefix(self.prefix, also="{}")
        self.key = functools.lru_cache(_MOST_KEPT)(self.key)  # type: ignore[method-assign]

    @classmethod
    def _named(cls, named: Named, client: redis.Redis) -> RedisStore:
        return cls(client, named.addresses, **named.options)

    def _connect(self, pool: Any, connect_timeout: float, timeout: float) -> None:
        self.connections = ClusterConnections(
            pool, self._seeds, connect_timeout=connect_timeout, timeout=timeout
        )

    def _wakes(self) -> WakeUps:
        return ClusterWakeUps(self)

    def shard_of(self, lock_id: str) -> int:
        node = self.connections.node_of(self.key(lock_id))
        return 0 if node is None else node.number

    def key(self, lock_id: str) -> bytes:
        key = super().key(lock_id)
        if b"{" in key or b"}" in key:  # Redis would take a part of the key for the slot
            return self._hashed(lock_id)
        return key

    def channel(self, lock_id: str) -> bytes:
        """Return the begin of the names of channels that are in the lock's slot."""
        return b"%b{%b}" % (self._channel, self.key(lock_id))

    async def afence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        """Append; the number is the time in microseconds, and 19 hours more for each epoch.

        Whenever slots get another primary, the cluster gives it an epoch above all others.
        """
        found: tuple[Stored, int] | None
        found = await self.connections.exchange(True, _fence, self.key(lock_id), line)
        return found

    async def aappend_and_wake(self, lock_id: str, line: bytes) -> Stored | None:
        if self.wake_ups is None:
            return await self.aappend(lock_id, line)
        return await self._append(_WAKE, lock_id, line, self.channel(lock_id))


async def _fence(connection: Connection, key: bytes, line: bytes) -> tuple[Stored, int] | None:
    # A node to which a slot just moves gets an epoch above all others with the slot, or has it.
    least = 0
    if isinstance(connection, _Asking):
        least = 1 + await connection.source.exchange(True, _epoch)
    match await _FENCE.run(connection, key, line):
        case [now, bytes(epoch), record]:
            found = fenced([now, record])
            assert found is not None
            return found[0], (max(number(epoch), least) << _EPOCH_BITS) + found[1]
        case reply:
            return fenced(reply)


async def _epoch(connection: Connection) -> int:
    reply = await connection.ask("CLUSTER", "INFO")
    found = re.search(rb"cluster_my_epoch:(\d{1,18})\b", reply if isinstance(reply, bytes) else b"")
    if found is None:
        raise Refused("it answered CLUSTER INFO without its epoch")
    return int(found[1])


class _Waiter:
    """A waiter, and the wake-ups of the node on which it is subscribed."""

    __slots__ = ("lock_id", "on", "token")

    def __init__(self, lock_id: str, token: str) -> None:
        self.lock_id = lock_id
        self.token = token
        self.on: NodeWakeUps | None = None


class ClusterWakeUps(WakeUps):
    """The wake-ups of this process from each node of a cluster. Survives fork."""

    def __init__(self, store: ClusterStore) -> None:
        super().__init__()
        self._store = store
        self._start_again()
        reset_in_child(self._start_again)

    def _start_again(self) -> None:
        self._waiters: dict[Bell, _Waiter] = {}
        self._bells: dict[str, Bell] = {}

    @property
    def come(self) -> bool:
        return False  # to a waiter whose node is not known

    def of(self, bell: Bell) -> WakeUps:
        waiter = self._waiters.get(bell)
        return self if waiter is None or waiter.on is None else waiter.on

    async def begin(self, lock_id: str, token: str, bell: Bell) -> None:
        self._bells[token] = bell
        self._waiters[bell] = waiter = _Waiter(lock_id, token)
        await self._follow(waiter, bell)

    async def _follow(self, waiter: _Waiter, bell: Bell) -> bool:
        """Subscribe on the node that has the lock now; return whether it is a new subscription."""
        node = self._store.connections.node_of(self._store.key(waiter.lock_id))
        on = None if node is None else node.wake_ups
        if on is waiter.on and (on is None or on.hears(waiter.token)):
            return False
        if waiter.on is not None and waiter.on is not on:
            waiter.on.end(waiter.token)
        waiter.on = on
        return on is not None and await on.begin_on(
            self._store.channel(waiter.lock_id), waiter.token, bell
        )

    def end(self, token: str) -> None:
        bell = self._bells.pop(token, None)
        waiter = None if bell is None else self._waiters.pop(bell, None)
        if waiter is not None and waiter.on is not None:
            waiter.on.end(token)

    async def await_(self, bell: Bell, seconds: float) -> None:
        waiter = self._waiters.get(bell)
        if waiter is not None and await self._follow(waiter, bell):
            bell.ring()  # a message may have been lost meanwhile
        if waiter is None or waiter.on is None:
            await bell.sleep(seconds)
        else:
            await waiter.on.await_(bell, seconds)
