"""What each process is to do: random operations, the same for the same seed."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TypeVar

_T = TypeVar("_T")

USERS = tuple(f"user-{number}" for number in range(3))
#: Those whose name begins with "m" have a `WriteIdProperty`.
COUNTERS = ("c0", "c1", "m0", "m1")


class Way(enum.Enum):
    """How entities are written."""

    PUT = "put"
    BATCH = "put_async of all, then wait"
    TWICE = "put, and the same object again"
    TRANSACTION = "in a transaction, the lock around it"
    LOCK_INSIDE = "in a transaction, the lock inside it"
    READ_BEFORE = "put in a transaction, read before it"
    DELETE = "delete"
    DELETE_IN_TRANSACTION = "delete in a transaction"
    ENTRY = "a new entity under an automatic id"
    ENTRY_IN_TRANSACTION = "the same in a transaction, beside a counter"


class Guard(enum.Enum):
    """What is held meanwhile, and what is checked."""

    LOCK = "the lock"
    HEARTBEAT = "the lock, renewed in the background"
    EXTENSION = "the lock, extended by hand"
    LOGGED_LOCK = "the lock, and what is not allowed is only told of"
    LOGGED = "no lock, and that is told of"
    SUPPRESSED = "no lock, and nothing is checked"


class Read(enum.Enum):
    """How entities are read."""

    GET = "get"
    AGAIN = "get, and get again after the pause"
    UNCACHED = "get past the context cache, so from the global cache where that is asked"
    QUERY = "query"


class Accident(enum.Enum):
    """What happens between the read and the write."""

    NOTHING = "nothing"
    PAUSE = "a pause"
    PAST_LEASE = "a pause longer than the lease"
    BROKEN = "an operator breaks the lock"
    EVICTED = "memcached forgets everything"


@dataclass(frozen=True)
class Operation:
    """One request, as it were.

    Attributes:
        name: no other has it.
        entities: those that it writes: "user/counter".
        pause: for how long it works between the read and the write, in seconds.
    """

    name: str
    entities: tuple[str, ...]
    way: Way
    guard: Guard
    read: Read
    accident: Accident
    pause: float

    @property
    def users(self) -> tuple[str, ...]:
        """Whose locks it needs."""
        return tuple(sorted({entity.partition("/")[0] for entity in self.entities}))


_WAYS = {
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
}
_GUARDS = {
    Guard.LOCK: 40,
    Guard.HEARTBEAT: 10,
    Guard.EXTENSION: 5,
    Guard.LOGGED_LOCK: 15,
    Guard.LOGGED: 10,
    Guard.SUPPRESSED: 20,
}
_READS = {Read.GET: 50, Read.AGAIN: 15, Read.UNCACHED: 20, Read.QUERY: 15}
_ACCIDENTS = {
    Accident.NOTHING: 60,
    Accident.PAUSE: 30,
    Accident.PAST_LEASE: 1,
    Accident.BROKEN: 6,
    Accident.EVICTED: 3,
}


def program(seed: int, process: int) -> Iterator[Operation]:
    """All that a process does, without an end."""
    random = Random(f"{seed}/{process}")
    number = 0
    while True:
        number += 1
        yield _operation(random, f"{process}.{number}")


def _operation(random: Random, name: str) -> Operation:
    way = _one(random, _WAYS)
    guard = _one(random, _GUARDS)
    read = _one(random, _READS)
    if way in (Way.DELETE, Way.DELETE_IN_TRANSACTION):
        # A delete carries a version only of what the context cache has.
        read = Read.GET
    if way is Way.DELETE and guard in (Guard.LOGGED, Guard.SUPPRESSED):
        guard = Guard.LOGGED_LOCK  # and only of what was read under the lock
    return Operation(
        name=name,
        entities=_entities(random),
        way=way,
        guard=guard,
        read=read,
        accident=_one(random, _ACCIDENTS),
        pause=random.uniform(0.001, 0.03),
    )


def _entities(random: Random) -> tuple[str, ...]:
    """Mostly some of one user, sometimes of two."""
    users = random.sample(USERS, 2 if random.random() < 0.1 else 1)
    each = [f"{user}/{counter}" for user in users for counter in COUNTERS]
    return tuple(random.sample(each, random.choice((1, 1, 2, 3))))


def _one(random: Random, weights: dict[_T, int]) -> _T:
    return random.choices(list(weights), list(weights.values()))[0]
