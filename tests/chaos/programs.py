"""The programs of the threads: random operations, the same for the same seed."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

_T = TypeVar("_T")

USERS = tuple(f"user-{number}" for number in range(3))
#: The tenants: the same users, locks and counters are in each. An operation is in one of them.
NAMESPACES = ("", "second")
#: Counters whose name begins with "m" have a `WriteIdProperty`, those with "t" a unique title.
COUNTERS = ("c0", "c1", "m0", "m1", "t0", "t1")
#: Divisible by each number of variants.
VARIANTS = 24


class Way(enum.Enum):
    """The way in which entities are written."""

    PUT = "put"
    BATCH = "put_async of all, then wait"
    TWICE = "put the same object twice"
    TRANSACTION = "in a transaction, the lock around it"
    LOCK_INSIDE = "in a transaction, the lock inside it"
    READ_BEFORE = "put in a transaction, read before it"
    DELETE = "delete"
    DELETE_IN_TRANSACTION = "delete in a transaction"
    ENTRY = "a new entity under an automatic id"
    ENTRY_IN_TRANSACTION = "the same in a transaction, with a counter"
    JOB = "put one after the other, yielding in between"
    SHARED = "one object, changed and put by two threads"
    HOOK = "put whose hook puts the same object"
    GRAPH = "put whose hook puts a child, whose hook puts the parent"
    MULTI = "put_multi of all"
    DROPPED = "put_async or delete_async of each, without waiting"
    APART = "put in another ndb context than the read"
    DELETE_APART = "delete in another ndb context than the read"
    RENAME = "put under a new key, then delete of the old one"
    RENAME_READ_BEFORE = "the same in a transaction, read before it"
    TASKLETS = "in concurrent tasklets, some of which write unguarded"
    PAST = "by ndb's functions below `put`, which is refused"
    STAGE = "stage jobs of the outbox in a transaction"
    REQUEST = "a request with an idempotency key"
    TREE = "plant trees, copy them, add to them, delete them"


class Guard(enum.Enum):
    """The locks that are held meanwhile, and the checks."""

    LOCK = "the lock"
    HEARTBEAT = "the lock, renewed in the background"
    EXTENSION = "the lock, extended by hand"
    LOGGED_LOCK = "the lock; violations are only logged"
    LOGGED = "no lock; violations are only logged"
    SUPPRESSED = "no lock; checks are off"
    PARTLY = "the lock of one of two users; the other's writes are refused"
    NONE = "no lock; writes are refused"


class Read(enum.Enum):
    """The way in which entities are read."""

    GET = "get"
    AGAIN = "get, and get again after the pause"
    UNCACHED = "get without the context cache, possibly from the global cache"
    QUERY = "query"
    EARLIER = "get before the lock is taken, and get again under it"


class Accident(enum.Enum):
    """An accident between the read and the write."""

    NOTHING = "nothing"
    PAUSE = "a pause"
    PAST_LEASE = "a pause longer than the lease"
    PAST_RECORD = "a pause longer than the stored lease"
    BROKEN = "an operator breaks the lock"
    EVICTED = "memcached is flushed"


#: Ways that are sometimes used in a transaction as well.
_IN_TRANSACTIONS_TOO = frozenset(
    {Way.HOOK, Way.GRAPH, Way.MULTI, Way.APART, Way.DELETE_APART, Way.RENAME, Way.PAST}
)
#: Ways with several writes, where one may be refused: the fate of the others is of interest.
_OFTEN_PARTLY = frozenset({Way.MULTI, Way.DROPPED})
#: A delete carries a version only if the entity is in the context cache.
_DELETES = frozenset({Way.DELETE, Way.DELETE_IN_TRANSACTION, Way.DELETE_APART})


@dataclass(frozen=True)
class Operation:
    """One operation, like a request.

    Attributes:
        name: unique, with its namespace.
        entities: the entities that it writes: "user/counter", with its namespace.
        pause: time between the read and the write, in seconds.
        wait: the longest wait for each lock, in seconds.
        in_transaction: whether it runs in one, if its way allows that.
        variant: the number of its variant, below `VARIANTS`.
        lengthy: whether its jobs may take longer than their claims.
    """

    name: str
    entities: tuple[str, ...]
    way: Way
    guard: Guard
    read: Read
    accident: Accident
    pause: float
    wait: float
    batch: bool
    in_transaction: bool = False
    variant: int = 0
    lengthy: bool = False

    @property
    def users(self) -> tuple[str, ...]:
        """Return the users whose locks it needs."""
        return tuple(sorted({entity.partition("/")[0] for entity in self.entities}))

    @property
    def namespace(self) -> str:
        """Return the namespace in which it is."""
        return namespace_of(self.name)


@dataclass(frozen=True)
class Mix:
    """The frequencies in a program.

    Attributes:
        ways, guards, reads, accidents: each with its weight.
        waits: the wait timeouts, equally frequent.
        longest_pause: the longest time between a read and a write, in seconds.
        users, counters: those of the entities.
        lengthy: whether jobs may take longer than their claims.
        runs_jobs: whether the process also runs jobs of the outbox, relays, and completes requests.
        locks: whether its jobs run under locks; otherwise their lease store never answers.
    """

    ways: Mapping[Way, int]
    guards: Mapping[Guard, int] = field(default_factory=lambda: {Guard.LOCK: 1})
    reads: Mapping[Read, int] = field(default_factory=lambda: {Read.GET: 1})
    accidents: Mapping[Accident, int] = field(default_factory=lambda: {Accident.PAUSE: 1})
    waits: tuple[float, ...] = (3.0,)
    longest_pause: float = 0.03
    users: tuple[str, ...] = USERS
    counters: tuple[str, ...] = COUNTERS
    batch: bool = False
    lengthy: bool = False
    runs_jobs: bool = False
    locks: bool = True

    @property
    def leaves_work(self) -> bool:
        """Return whether it stages jobs, or leaves unfinished requests."""
        return not self.ways.keys().isdisjoint({Way.STAGE, Way.REQUEST})


_READS = {Read.GET: 45, Read.AGAIN: 15, Read.UNCACHED: 15, Read.QUERY: 15, Read.EARLIER: 10}
#: Order is only checked if a lock was not lost for some seconds, so losses are rare.
_ACCIDENTS = {
    Accident.NOTHING: 240,
    Accident.PAUSE: 120,
    Accident.PAST_LEASE: 4,
    Accident.BROKEN: 6,
    Accident.EVICTED: 1,
}

#: The programs of each process. All after the first two are for negative controls: they make one
#: error likely, and do little else.
MIXES = {
    "interactive": Mix(
        ways={
            Way.PUT: 20,
            Way.BATCH: 15,
            Way.TWICE: 8,
            Way.TRANSACTION: 12,
            Way.LOCK_INSIDE: 8,
            Way.READ_BEFORE: 8,
            Way.DELETE: 6,
            Way.DELETE_IN_TRANSACTION: 4,
            Way.ENTRY: 6,
            Way.ENTRY_IN_TRANSACTION: 6,
            Way.SHARED: 10,
            Way.HOOK: 8,
            Way.GRAPH: 8,
            Way.MULTI: 6,
            Way.DROPPED: 6,
            Way.APART: 8,
            Way.DELETE_APART: 6,
            Way.RENAME: 10,
            Way.RENAME_READ_BEFORE: 4,
            Way.TASKLETS: 8,
            Way.PAST: 3,
            Way.STAGE: 30,
            Way.REQUEST: 20,
            Way.TREE: 24,
        },
        guards={
            Guard.LOCK: 40,
            Guard.HEARTBEAT: 15,
            Guard.EXTENSION: 5,
            Guard.LOGGED_LOCK: 10,
            Guard.LOGGED: 10,
            Guard.SUPPRESSED: 20,
            Guard.PARTLY: 4,
            Guard.NONE: 6,
        },
        reads=_READS,
        accidents=_ACCIDENTS,
        waits=(0.0, 0.5, 3.0, 3.0, 3.0),
    ),
    "batch": Mix(
        ways={
            Way.JOB: 12,
            Way.PUT: 3,
            Way.BATCH: 3,
            Way.TRANSACTION: 3,
            Way.LOCK_INSIDE: 1,
            Way.STAGE: 2,
            Way.REQUEST: 2,
            Way.TREE: 6,
        },
        guards={Guard.LOCK: 2, Guard.HEARTBEAT: 3, Guard.EXTENSION: 1},
        reads=_READS,
        accidents=_ACCIDENTS,
        waits=(0.0, 2.0, 6.0, 6.0),
        batch=True,
        runs_jobs=True,
    ),
    "beyond their leases": Mix(
        ways={Way.PUT: 1},
        accidents={Accident.PAUSE: 7, Accident.PAST_RECORD: 1},
        waits=(8.0,),
        longest_pause=0.7,
        users=USERS[1:],  # not those of the others, which would mostly wait
    ),
    "read before the lock": Mix(ways={Way.PUT: 1}, reads={Read.EARLIER: 1}, users=USERS[:1]),
    "locks in transactions": Mix(ways={Way.LOCK_INSIDE: 1, Way.PUT: 1}, users=USERS[:1]),
    "writes without the lock": Mix(
        ways={Way.PUT: 4, Way.PAST: 1}, guards={Guard.SUPPRESSED: 1}, users=USERS[:1]
    ),
    "creations and deletes": Mix(
        ways={Way.PUT: 2, Way.DELETE: 1, Way.RENAME: 1},
        guards={Guard.SUPPRESSED: 1},
        users=USERS[:1],
    ),
    "blocks in tasklets": Mix(ways={Way.TASKLETS: 1}, guards={Guard.NONE: 1}),
    "titles": Mix(
        ways={Way.PUT: 2, Way.MULTI: 2, Way.DELETE: 1, Way.RENAME: 1},
        guards={Guard.SUPPRESSED: 1},
        users=USERS[:1],
        counters=("t0", "t1"),
    ),
    "deletes after puts": Mix(
        ways={Way.DELETE_APART: 3, Way.PUT: 2},
        guards={Guard.SUPPRESSED: 1},
        users=USERS[:1],
        counters=("t0", "t1"),
    ),
    # All ways, and so many collisions that rare orders of events are met.
    "few entities": Mix(
        ways=dict.fromkeys(Way, 1),
        guards={Guard.LOCK: 2, Guard.SUPPRESSED: 2, Guard.LOGGED: 1},
        reads=_READS,
        accidents=_ACCIDENTS,
        users=USERS[:1],
        counters=("c0", "m0", "t0"),
        waits=(0.5,),
        runs_jobs=True,
    ),
    "requests": Mix(ways={Way.REQUEST: 1}, runs_jobs=True),
    "trees": Mix(ways={Way.TREE: 1}, runs_jobs=True),
    "one lock": Mix(ways={Way.PUT: 1}, users=USERS[:1]),
    "one lock, batch": Mix(ways={Way.PUT: 1}, users=USERS[:1], batch=True),
    "one lock, and jobs": Mix(ways={Way.PUT: 1}, users=USERS[:1], runs_jobs=True),
    "one lock, batch, and jobs": Mix(
        ways={Way.PUT: 1}, users=USERS[:1], batch=True, runs_jobs=True
    ),
    "jobs": Mix(ways={Way.STAGE: 1}, longest_pause=0.3, runs_jobs=True),
    "jobs without locks": Mix(
        ways={Way.STAGE: 1}, longest_pause=1.0, lengthy=True, runs_jobs=True, locks=False
    ),
}


def in_name(name: str, namespace: str) -> str:
    """Return a name with a namespace: it is that of an operation, its writes, or an entity."""
    return f"{name}@{namespace}" if namespace else name


def namespace_of(name: str) -> str:
    """Return the namespace in a name."""
    found = re.search("@([a-z]+)", name)
    return "" if found is None else found[1]


def program(seed: str, performer: str, mix: Mix) -> Iterator[Operation]:
    """Yield the operations of one thread, without end."""
    random = Random(f"{seed}/{performer}")
    number = 0
    while True:
        number += 1
        yield _operation(random, in_name(f"{performer}.{number}", random.choice(NAMESPACES)), mix)


def _operation(random: Random, name: str, mix: Mix) -> Operation:
    way = one_of(random, mix.ways)
    guard = one_of(random, mix.guards)
    read = one_of(random, mix.reads)
    if way in _OFTEN_PARTLY and Guard.PARTLY in mix.guards and random.random() < 0.4:
        guard = Guard.PARTLY
    if way in _DELETES:
        read = Read.GET
    return Operation(
        name=name,
        entities=tuple(
            in_name(entity, namespace_of(name)) for entity in _entities(random, mix, way, guard)
        ),
        way=way,
        guard=guard,
        read=read,
        accident=one_of(random, mix.accidents),
        pause=random.uniform(0.001, mix.longest_pause),
        wait=random.choice(mix.waits),
        batch=mix.batch,
        in_transaction=way in _IN_TRANSACTIONS_TOO and random.random() < 0.3,
        variant=random.randrange(VARIANTS),
        lengthy=mix.lengthy,
    )


def _entities(random: Random, mix: Mix, way: Way, guard: Guard) -> tuple[str, ...]:
    """Choose entities, mostly of one user, sometimes of two."""
    two = guard is Guard.PARTLY or random.random() < 0.1
    users = random.sample(mix.users, 2 if len(mix.users) > 1 and two else 1)
    each = [f"{user}/{counter}" for user in users for counter in mix.counters]
    if way is Way.TASKLETS:
        return tuple(random.sample(each, 3))
    if guard is Guard.PARTLY:  # two of the first user, to combine one of them with another user's
        mine = [name for name in each if name.startswith(f"{min(users)}/")]
        return (*random.sample(mine, 2), random.choice([name for name in each if name not in mine]))
    return tuple(random.sample(each, min(len(each), random.choice((1, 1, 2, 3)))))


def one_of(random: Random, weights: Mapping[_T, int]) -> _T:
    """Choose one of these by weight."""
    return random.choices(list(weights), list(weights.values()))[0]
