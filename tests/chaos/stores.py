"""The kinds of lease store: the faults that apply to each, and the demands on it.

All kinds run the same programs in the same processes. Datastore's and ndb's cache are there in any
case. A lock and its lease server belong together for the whole run, so that a fault of one server
of several excuses the locks of that server only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.chaos.groups import Shards, Watched
from tests.chaos.harms import (
    CLOCK_SET,
    DATASTORE_STORM,
    DOWN,
    EMULATOR_KILLED,
    EMULATOR_STOPPED,
    FAULTS,
    FILLED,
    FLUSHED,
    MOVED,
    PROCESS_KILLED,
    PROCESS_STOPPED,
    PROMOTED,
    RESTARTED,
    RESTARTED_TWICE,
    STOPPED,
    Harm,
)
from tests.chaos.network import Trouble
from tests.servers import Memcached, RedisServer

#: Megabytes of a memcached: small enough that new items soon evict all others.
_MEMORY = "8"

#: Of each process the mix of its programs, its threads and its outage policy.
Members = Sequence[tuple[str, int, str]]
MEMBERS: Members = (
    ("interactive", 2, "optimistic"),
    ("interactive", 2, "optimistic"),
    ("interactive", 2, "fail"),
    ("batch", 1, "optimistic"),
    ("batch", 1, "fail"),
)
#: Several waiters at any time, on few locks.
_CONTENDED: Members = (
    ("interactive", 2, "optimistic"),
    ("interactive", 1, "fail"),
    ("one lock", 2, "optimistic"),
    ("one lock, and jobs", 2, "fail"),
    ("one lock, batch, and jobs", 1, "optimistic"),
)

# --- the faults, each with its frequency --------------------------------------------------------

_COMMON = {
    Harm.PROCESSES: {PROCESS_STOPPED: 7, PROCESS_KILLED: 2},
    Harm.DATASTORE: {what: weight for what, (weight, _) in FAULTS.items()},
    Harm.EMULATOR: {EMULATOR_KILLED: 1},
}
_ONLY_REDIS = {Trouble.WAKE_UPS_LOST}
_SERVER = {RESTARTED: 3, RESTARTED_TWICE: 1, DOWN: 2, STOPPED: 4}
_OF_REDIS = {trouble.value: 4 for trouble in _ONLY_REDIS}
_NETWORK = {
    CLOCK_SET: 1,
    **{trouble.value: 1 for trouble in set(Trouble) - {Trouble.WAKE_UPS_LOST}},
}
_MEMCACHED = _COMMON | {Harm.STORE: _SERVER | {FILLED: 2}, Harm.NETWORK: _NETWORK}
_REDIS = _COMMON | {Harm.STORE: _SERVER, Harm.NETWORK: _NETWORK | _OF_REDIS}
#: Of servers that stand in for each other. One that is stopped for long is replaced.
_GROUP = {RESTARTED: 1, DOWN: 2, STOPPED: 3, PROMOTED: 2, FLUSHED: 1}
_SENTINEL = _COMMON | {Harm.STORE: _GROUP, Harm.NETWORK: _NETWORK | _OF_REDIS}
_CLUSTER = _COMMON | {Harm.STORE: _GROUP | {MOVED: 5}, Harm.NETWORK: _NETWORK | _OF_REDIS}
#: The emulator is the lease server. A proxy that swallows what it has acknowledged would disturb
#: gRPC for ever, as no network does.
_DATASTORE = _COMMON | {
    Harm.STORE: {EMULATOR_KILLED: 1, EMULATOR_STOPPED: 3},
    Harm.NETWORK: {CLOCK_SET: 1},
    Harm.EMULATOR: {},
}
_FALLBACK = _MEMCACHED | {Harm.EMULATOR: {EMULATOR_KILLED: 1, EMULATOR_STOPPED: 2}}

#: The faults after which a server may have lost any record.
LOSSES = frozenset({RESTARTED, RESTARTED_TWICE, DOWN, FILLED})
_GROUPS_LOSSES = LOSSES | {STOPPED, PROMOTED, FLUSHED}
#: The other faults of the network and of servers, without loss of data. Wall clocks are among
#: them, because a waiter that rejoins the queue is placed by its own.
#: Lost wake-ups excuse nothing: a waiter polls in time.
TROUBLES = frozenset({STOPPED, CLOCK_SET, *(trouble.value for trouble in Trouble)}) - set(_OF_REDIS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreKind:
    """A kind of lease store.

    Attributes:
        faults: the faults that apply, by source, each with its frequency.
        loses: the faults that excuse two holders of one lock, and stale reads under it. Without
            such a fault both are findings.
        troubles: the other faults that excuse a lost order and degraded leases.
        late_seconds: the longest time by which its time-outs may delay a result.
        servers: the number of its lease servers. One of them fails at a time.
        start: starts one, with a folder for its logs. None: the emulator has the leases, or
            `groups` starts them.
        groups: starts servers that stand in for each other, with a folder and a seed.
        url: the store's URL, with "{servers}" for their addresses.
        fallback: the URL of the fallback store, if any. Leases in it exclude each other whatever
            happens to the first store.
        flush: the command, if any, by which a program makes a server lose its data.
        stormy: the sources that pause at times, so that order can be checked.
        calm: the length of these pauses, in seconds.
        members: the processes.
    """

    faults: Mapping[Harm, Mapping[str, int]]
    loses: frozenset[str] = LOSSES
    troubles: frozenset[str] = TROUBLES
    late_seconds: float = 1.5
    servers: int = 1
    start: Callable[[Path], Memcached | RedisServer] | None
    groups: Callable[[Path, str], Shards | Watched] | None = None
    url: str
    fallback: str = ""
    flush: str = ""
    stormy: frozenset[Harm] = frozenset({Harm.STORE, Harm.NETWORK})
    calm: float = 7.0
    members: Members = MEMBERS

    @property
    def harms(self) -> frozenset[Harm]:
        """Return the sources of which a fault applies."""
        return frozenset(harm for harm, faults in self.faults.items() if faults)

    def may_meet(self, what: str) -> bool:
        """Return whether this fault applies."""
        return any(what in faults for faults in self.faults.values())


def _memcached(folder: Path) -> Memcached:
    return Memcached(folder, "-m", _MEMORY)


_OF_MEMCACHED = StoreKind(
    faults=_MEMCACHED,
    start=_memcached,
    url="memcache://{servers}?prefix=trial",
    flush="flush_all\r\n",
)

STORES: Mapping[str, StoreKind] = {
    "memcached": _OF_MEMCACHED,
    "memcacheds": dataclasses.replace(_OF_MEMCACHED, servers=3),
    "redis": StoreKind(
        faults=_REDIS,
        start=RedisServer,
        url="redis://{servers}/0?prefix=trial",
        flush="FLUSHALL\r\n",
    ),
    "cluster": StoreKind(
        faults=_CLUSTER,
        loses=_GROUPS_LOSSES,
        late_seconds=2.0,
        servers=0,
        start=None,
        groups=Shards,
        url="redis+cluster://{servers}?prefix=trial",
    ),
    "sentinel": StoreKind(
        faults=_SENTINEL,
        loses=_GROUPS_LOSSES,
        late_seconds=2.0,
        servers=0,
        start=None,
        groups=Watched,
        url="redis+sentinel://{servers}/app?prefix=trial",
    ),
    # It keeps its data on disk, so nothing excuses two holders.
    "datastore": StoreKind(
        faults=_DATASTORE,
        servers=0,
        loses=frozenset(),
        troubles=frozenset({DATASTORE_STORM, EMULATOR_KILLED, EMULATOR_STOPPED, CLOCK_SET}),
        start=None,
        url="datastore://?prefix=trial",
        stormy=frozenset({Harm.STORE, Harm.NETWORK, Harm.DATASTORE}),
        calm=14.0,
        members=_CONTENDED,
    ),
    "fallback": dataclasses.replace(
        _OF_MEMCACHED,
        faults=_FALLBACK,
        late_seconds=2.5,  # both stores' time-outs
        fallback="datastore://?prefix=trial",
    ),
}
