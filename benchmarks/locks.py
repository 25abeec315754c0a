"""The locks in the comparison: package, server, and missing requirements.

Each is used as in its documentation's first example, with its defaults, without any tuning. A
process has one client, shared by its threads. Each thread has a lock object of its own, created
beforehand.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.metadata
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks import peers, server
from benchmarks.peers import Client
from benchmarks.server import Server


class Store(enum.Enum):
    """The server that stores the locks."""

    MEMCACHED = "memcached"
    REDIS = "Redis"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One lock implementation.

    Attributes:
        name: its name in the tables.
        store: the server that it needs.
        connect: creates a process's client from the server's `host:port`.
        defaults: its way of waiting, and other defaults that affect the figures.
        package: its package, if it is not from this repository.
        modules: the modules that it needs.
        ours: whether it is from this repository.
    """

    name: str
    store: Store
    connect: Callable[[str], Client]
    defaults: str
    package: str = ""
    modules: tuple[str, ...] = ()
    ours: bool = False

    def missing(self) -> str | None:
        """Return the reason why it cannot take part here, or None."""
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        if absent:
            return f"{self.name} is missing: no {', '.join(absent)} (make .venv/.ready-bench)"
        if self.store is Store.REDIS and redis_binary() is None:
            return f"{self.name} is missing: no redis-server on the PATH"
        return None


USERLOCK = "userlock"
USERLOCK_ON_REDIS = "userlock on Redis"
SCHEME_2016 = "scheme of 2016"

_ALL = (
    Kind(
        name=USERLOCK,
        store=Store.MEMCACHED,
        connect=peers.userlock_on("memcache"),
        defaults="waits for 10 s at most",
        ours=True,
    ),
    Kind(
        name=USERLOCK_ON_REDIS,
        store=Store.REDIS,
        connect=peers.userlock_on("redis"),
        defaults="waits for 10 s at most",
        modules=("redis",),
        ours=True,
    ),
    Kind(
        name=SCHEME_2016,
        store=Store.MEMCACHED,
        connect=peers.Scheme2016,
        defaults="polls every second, times out after 5 s; pymemcache's pool without timeouts",
    ),
    Kind(
        name="sherlock",
        store=Store.MEMCACHED,
        connect=peers.Sherlock,
        defaults="MCLock over pylibmc; polls every 0.1 s, times out after 10 s",
        package="sherlock",
        modules=("sherlock", "pylibmc"),
    ),
    Kind(
        name="tooz",
        store=Store.MEMCACHED,
        connect=peers.Tooz,
        defaults="memcached driver; polls every second, for ever",
        package="tooz",
        modules=("tooz", "pymemcache"),
    ),
    Kind(
        name="redis-py",
        store=Store.REDIS,
        connect=peers.RedisPy,
        defaults="polls every 0.1 s, for ever",
        package="redis",
        modules=("redis",),
    ),
    Kind(
        name="python-redis-lock",
        store=Store.REDIS,
        connect=peers.PythonRedisLock,
        defaults="blocks in BLPOP, for ever",
        package="python-redis-lock",
        modules=("redis_lock",),
    ),
    Kind(
        name="pottery",
        store=Store.REDIS,
        connect=peers.Pottery,
        defaults="Redlock on one server; polls every 0 to 0.2 s, for ever; a lease of 10 s",
        package="pottery",
        modules=("pottery",),
    ),
)

#: All locks of the comparison by name, ours first.
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}


def present() -> list[Kind]:
    """Return the locks that can take part here."""
    return [kind for kind in KINDS.values() if kind.missing() is None]


def missing() -> list[str]:
    """Return the reasons why the others cannot, a sentence each."""
    return [why for kind in KINDS.values() if (why := kind.missing()) is not None]


def defaults_of(kinds: list[Kind]) -> str:
    """Return the other packages' ways of waiting, for a section's notes."""
    defaults = "; ".join(f"{kind.name} ({kind.defaults})" for kind in kinds if not kind.ours)
    return f"At their defaults: {defaults}."


def versions() -> dict[str, str]:
    """Return the versions of the other packages that are installed."""
    packages = {kind.package for kind in present() if kind.package}
    return {package: importlib.metadata.version(package) for package in sorted(packages)}


def redis_binary() -> str | None:
    """Return the path of the real redis-server, if there is one."""
    return shutil.which("redis-server")


@contextlib.contextmanager
def started(store: Store, *, core: int | None = None) -> Iterator[Server]:
    """Start a server of that type."""
    if store is Store.MEMCACHED:
        with server.memcached(core=core) as memcached:
            yield memcached
        return
    binary = redis_binary()
    if binary is None:
        raise RuntimeError("there is no redis-server on the PATH")
    with server.redis(binary, core=core) as redis:
        yield redis


@contextlib.contextmanager
def servers_for(kinds: list[Kind]) -> Iterator[dict[Store, Server]]:
    """Start a server of each type that these locks need."""
    with contextlib.ExitStack() as stack:
        yield {
            store: stack.enter_context(started(store))
            for store in Store
            if any(kind.store is store for kind in kinds)
        }
