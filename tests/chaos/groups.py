"""Servers that stand in for each other, as one lease server: of a cluster's shard, of Sentinels.

Each node is behind a network of its own, whose port the others are told.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Self

from redis.crc import key_slot

from tests.chaos.network import Network, Trouble, Weather
from tests.clusters import SLOTS, ClusterNode, Node, RedisCluster, SentinelGroup, until

#: Until a silent primary is replaced, in seconds.
_SILENCE_SECONDS = 1.5


class Networks:
    """The networks of some nodes: what happens, happens to that of the primary."""

    def __init__(self, by_port: dict[int, Network], primary: Callable[[], Node]) -> None:
        self.by_port = by_port
        self._primary = primary

    @property
    def _now(self) -> Network:
        return self.by_port[self._primary().port]

    @property
    def port(self) -> int:
        return self._now.port

    @property
    def hit(self) -> Counter[Trouble]:
        return sum((each.hit for each in self.by_port.values()), Counter())

    @contextlib.contextmanager
    def weather(self, weather: Weather) -> Iterator[None]:
        with self._now.weather(weather):
            yield

    def cut(self) -> None:
        self._now.cut()

    def __enter__(self) -> Self:  # they are entered as they are made: nodes use them at once
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Group:
    """Some nodes as one server: what is done to it, its primary meets.

    Args:
        nodes: the first one is the primary at first.
        settled: returns whether all agree on who is primary.
        promoted: waits until another node is primary than this one.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        settled: Callable[[], bool],
        promoted: Callable[[Node], None],
    ) -> None:
        self.nodes = nodes
        self._settled = settled
        self._promoted = promoted
        self._last = nodes[0]

    def primary(self) -> Node:
        """Return the primary, or the last one if none answers."""
        for node in self.nodes:
            with contextlib.suppress(Exception):
                if node.running and node.is_primary:
                    self._last = node
                    break
        return self._last

    @property
    def port(self) -> int:
        return self._last.port

    def settle(self) -> None:
        """Wait until one is primary, and the others follow it."""
        until(self._settled, "the group is whole")

    def kill(self) -> None:
        self.primary().kill()

    def start(self) -> None:
        for node in self.nodes:
            if not node.running:
                node.start()
        self.settle()

    def restart(self) -> None:
        self.kill()
        self.start()

    def promote(self) -> None:
        """Kill the primary, and start it again when another one is primary."""
        failed = self.primary()
        failed.kill()
        self._promoted(failed)
        self.start()

    def flush(self) -> None:
        """Make the primary lose its data."""
        self.primary().ask("FLUSHALL")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        with self.primary().paused():
            yield
        self.settle()

    def stop(self) -> None:
        """Do nothing: the whole is stopped."""


class Grouped:
    """All groups of a run, with their networks. A context."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self.networks: dict[int, Network] = {}
        self.stack = contextlib.ExitStack()

    def seen_at(self, port: int) -> int:
        network = Network(port, Random(f"{self._seed}/network {len(self.networks)}"))
        self.networks[port] = self.stack.enter_context(network)
        return network.port

    def of(self, group: Group) -> Networks:
        return Networks(
            {node.port: self.networks[node.port] for node in group.nodes}, group.primary
        )


class Shards(Grouped):
    """A cluster: a group for each shard."""

    def __init__(self, folder: Path, seed: str) -> None:
        super().__init__(seed)
        self.cluster = self.stack.enter_context(
            RedisCluster(folder, node_timeout_seconds=_SILENCE_SECONDS, seen_at=self.seen_at)
        )
        primaries, replicas = self.cluster.nodes[:3], self.cluster.nodes[3:]
        self.groups = [
            Group(pair, self._settled, self._promoted)
            for pair in zip(primaries, replicas, strict=True)
        ]

    def _settled(self) -> bool:
        return all(self.cluster._is_whole(node) for node in self.cluster.nodes)

    def _promoted(self, failed: Node) -> None:
        assert isinstance(failed, ClusterNode)
        self.cluster.wait_for_promotion(failed)

    @property
    def urls(self) -> str:
        """Return what stands for the servers in the store's URL."""
        return ",".join(f"127.0.0.1:{node.seen}" for node in self.cluster.nodes[:2])

    def homes(self, keys: dict[str, bytes]) -> dict[str, int]:
        """Return the number of the group of each lock at first, by their keys."""
        return {lock: key_slot(key) * len(self.groups) // SLOTS for lock, key in keys.items()}

    def move(self, key: bytes, to: int) -> None:
        """Move the slot of a key to another group."""
        target = self.groups[to].primary()
        assert isinstance(target, ClusterNode)
        self.cluster.move(key_slot(key), target)


class Watched(Grouped):
    """Servers that Sentinels watch: one group."""

    def __init__(self, folder: Path, seed: str) -> None:
        super().__init__(seed)
        self.sentinels = self.stack.enter_context(
            SentinelGroup(folder, down_after_seconds=_SILENCE_SECONDS, seen_at=self.seen_at)
        )
        promoted = self.sentinels.wait_for_promotion
        self.groups = [Group(self.sentinels.servers, self._settled, promoted)]

    def _settled(self) -> bool:
        roles = {node: node.raw("ROLE") for node in self.sentinels.servers}
        primaries = [node for node, role in roles.items() if role[0] == b"master"]
        return (
            len(primaries) == 1
            and self.sentinels.named() == {primaries[0].seen}
            and all(
                role[2:4] == [primaries[0].seen, b"connected"]
                for node, role in roles.items()
                if node is not primaries[0]
            )
        )

    @property
    def urls(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.sentinels.ports)

    def homes(self, keys: dict[str, bytes]) -> dict[str, int]:
        return dict.fromkeys(keys, 0)
