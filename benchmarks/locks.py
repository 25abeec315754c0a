"""The locks that are compared: whose they are, on which server, and what is missing here.

Each is used as its documentation's first example does, with its defaults: none
is tuned, and none is held back. A process has one client, as many threads as
it likes use it, and each thread has a lock object of its own, made beforehand.
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
    """What keeps the locks."""

    MEMCACHED = "memcached"
    REDIS = "Redis"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of lock.

    Attributes:
        name: what the tables call it.
        store: which server it needs.
        connect: makes a process's client from the server's `host:port`.
        defaults: how it waits, and what else of its defaults shows in the figures.
        package: what brings it, when that is not this repository.
        modules: what has to be importable for it.
        ours: whether a fault of it is ours.
    """

    name: str
    store: Store
    connect: Callable[[str], Client]
    defaults: str
    package: str = ""
    modules: tuple[str, ...] = ()
    ours: bool = False

    def missing(self) -> str | None:
        """Why it cannot take part here, or None."""
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        if absent:
            return f"{self.name} is missing: no {', '.join(absent)} (pip install 'userlock[bench]')"
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
        defaults="asks every second, gives up after 5 s; pymemcache's pool without time-outs",
    ),
    Kind(
        name="sherlock",
        store=Store.MEMCACHED,
        connect=peers.Sherlock,
        defaults="MCLock over pylibmc; asks every 0.1 s, gives up after 10 s",
        package="sherlock",
        modules=("sherlock", "pylibmc"),
    ),
    Kind(
        name="tooz",
        store=Store.MEMCACHED,
        connect=peers.Tooz,
        defaults="memcached driver; asks every second, for ever",
        package="tooz",
        modules=("tooz", "pymemcache"),
    ),
    Kind(
        name="redis-py",
        store=Store.REDIS,
        connect=peers.RedisPy,
        defaults="asks every 0.1 s, for ever",
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
        defaults="Redlock on one server; asks every 0 to 0.2 s, for ever; a lease of 10 s",
        package="pottery",
        modules=("pottery",),
    ),
)

#: All that can be compared, by name, ours first.
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}


def present() -> list[Kind]:
    """Those that can take part here."""
    return [kind for kind in KINDS.values() if kind.missing() is None]


def missing() -> list[str]:
    """Why the others cannot, a sentence each."""
    return [why for kind in KINDS.values() if (why := kind.missing()) is not None]


def defaults_of(kinds: list[Kind]) -> str:
    """How those of others wait, for a section's notes."""
    told = "; ".join(f"{kind.name} ({kind.defaults})" for kind in kinds if not kind.ours)
    return f"At their defaults: {told}."


def versions() -> dict[str, str]:
    """The versions of the others' packages that are here."""
    packages = {kind.package for kind in present() if kind.package}
    return {package: importlib.metadata.version(package) for package in sorted(packages)}


def redis_binary() -> str | None:
    """The path of the real redis-server, if there is one."""
    return shutil.which("redis-server")


@contextlib.contextmanager
def started(store: Store, *, core: int | None = None) -> Iterator[Server]:
    """A server of that kind, of our own."""
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
    """A server of each kind that these locks need."""
    with contextlib.ExitStack() as stack:
        yield {
            store: stack.enter_context(started(store))
            for store in Store
            if any(kind.store is store for kind in kinds)
        }
