"""The lease store protocol: a register with one record a lock, changed by compare and swap.

A store knows nothing of leases, waiters or priorities. It keeps one record (a
few hundred bytes) under a lock id for a time to live, and changes it in five
ways, each of them atomic. What stands in the record is said in
`userlock.lock.record`; what the changes mean, in `userlock.lock.protocol`. So
the protocol is written, and tested, once for all stores.

    create   if there is none                     memcached  ms … ME
    read     with its version                                mg … v c t
    swap     if it is still of that version                  ms … C<version>
    remove   if it is still of that version                  md … C<version>
    append   a line, to whatever is there                    ms … MA

`append` is what makes waiting cheap and safe: it needs no version, so two
that append at once do not disturb each other, and it leaves the time to live
as it was.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

#: For how long a record stays after its time to live is over, where the store can tell the
#: time. Waiters take it over in order within that time; nobody can pass them by `create`.
GRACE_SECONDS = 3


class StoreUnavailable(Exception):
    """The store did not say whether it did what it was asked to do.

    Raised by stores, with the client's error as `__cause__`; it never leaves
    the lock service.

    Attributes:
        reason: for people: which server, and what was wrong.
        sent: whether the store may have been asked at all. False only when that is certain.
        slow: what was asked may yet be done, later: the reply did not come in time, or there is
            something in between that goes on by itself. False when the connection to the server
            is known to have ended.
    """

    def __init__(self, reason: str, *, sent: bool = True, slow: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent
        self.slow = slow


class Stored(NamedTuple):
    """A record as it was read.

    Attributes:
        record: what is stored: the first line as created, and whatever was appended.
        version: names this state of the record, for `swap` and `remove`. Opaque, and only for
            the store that gave it, in the process that got it.
        lapsed: its time to live is over, by the store's clock, but it has not gone yet.
    """

    record: bytes
    version: object
    lapsed: bool


class LeaseStore(Protocol):
    """A register for one record a lock. Thread-safe; survives fork.

    Lock ids are non-empty strings of any length and any Unicode (lone
    surrogates too), and different ones never meet. Records and lines are
    bytes of printable text, records with `\\n` between their lines, and may
    come to 100,000 bytes.

    Time to live: a record is not gone, and does not count as lapsed, before
    `ttl_seconds` have passed since `create` or `swap` was called, whatever
    the store's clock is worth; it is gone soon after `ttl_seconds` plus
    `GRACE_SECONDS`. A store that cannot tell how long a record has still to
    live never says lapsed, and lets it go soon after `ttl_seconds`.

    A store that can only be used by threads that serve a request says so with
    a true attribute `requests_only`: heartbeats are refused then.

    Every verb raises `StoreUnavailable`, and nothing else, for trouble with
    the server. What changes a record is sent once: the caller looks what
    became of it. `read` may be sent again; so may `append`, but to nothing but
    the record that it was sent to first (the line may then be there twice). No
    verb may take much longer than the store's own time-outs.
    """

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        """Store the record if there is none. Its version; None when there is one already."""
        ...

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        """Return the record; None when there is none.

        Args:
            lock_id: whose record.
            hurry: the server has just been slow to answer: wait for it less long than usual,
                and not on a connection that was used before.
        """
        ...

    def swap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        """Replace the record if it is still of that version, and begin a new time to live.

        The new version; None when it has changed or gone, or when the store
        cannot be sure that the version still means what it meant (a server
        may have been restarted). Nothing is written then.
        """
        ...

    def remove(self, lock_id: str, version: object) -> bool:
        """Delete the record if it is still of that version; whether that was done."""
        ...

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        """Add `line` at the end of the record, if there is one; its time to live stays.

        The record as it is afterwards; None when there is none. `line` begins
        with the newline that parts it from what is there. It is left out,
        which the answer shows, where the store has no room for a longer
        record, or something stands there that is none.
        """
        ...

    def close(self) -> None:
        """Give up connections."""
        ...


class Swap(NamedTuple):
    """One of many changes; as the arguments of `LeaseStore.swap`."""

    lock_id: str
    version: object
    record: bytes
    ttl_seconds: float


@runtime_checkable
class BatchStore(LeaseStore, Protocol):
    """A store that can make many changes in a few round trips."""

    def swap_many(self, swaps: Sequence[Swap]) -> list[object | StoreUnavailable | None]:
        """`swap` for each of these, all of different locks; what each gives, in their order.

        Each stands alone: that one is refused says nothing of the others.
        Nothing is raised for trouble with the server. A `StoreUnavailable`
        stands in place of each answer that did not come; whether that one was
        done is not known, unless `sent` is False.
        """
        ...


@runtime_checkable
class RewritingStore(LeaseStore, Protocol):
    """A store that can replace a record without touching its time to live."""

    def rewrite(self, lock_id: str, version: object, record: bytes) -> object | None:
        """As `swap`, for the rest of the record's time to live.

        It never ends earlier than it would have; on memcached now and then a
        second later. None, and nothing is written, also where the store
        cannot tell how long the record has still to live. It takes no more
        than twice as long as another verb.

        Raises:
            StoreUnavailable: as `swap`.
        """
        ...


@runtime_checkable
class ShardedStore(LeaseStore, Protocol):
    """A store on several servers, one of which may be down while the others are not."""

    def shard_of(self, lock_id: str) -> int:
        """Return the server that has the lock."""
        ...


# --- what some stores can do besides, for operators -----------------------------------------


class Listed(NamedTuple):
    """A lock that has a record, as a store lists it.

    Attributes:
        name: the lock id; where the store keeps only its hash, `sha256:` and the hash.
        hashed: whether the name is such a hash.
        key: the store's own name for the record. Opaque.
    """

    name: str
    hashed: bool
    key: object


class ListingStopped(Exception):
    """Not all locks could be listed. The message says why, for people."""


@runtime_checkable
class ListingStore(LeaseStore, Protocol):
    """A store that can say which locks have a record. For operators: it may take its time."""

    def lock_ids(self, limit: int) -> Iterator[Listed]:
        """Return the locks that have a record now: at most `limit`, each once, in no order.

        Those that come or go meanwhile may be there or not.

        Raises:
            StoreUnavailable: the store did not answer.
            ListingStopped: after those that were found, if there may be more than them.
        """
        ...

    def read_listed(self, listed: Sequence[Listed]) -> list[Stored | None]:
        """Return the records of listed locks, in their order, in as few round trips as it takes.

        Their versions are worth nothing.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        ...


@runtime_checkable
class TimedStore(LeaseStore, Protocol):
    """A store that can tell how long a record has still to live."""

    def seconds_left(self, lock_id: str) -> float | None:
        """Return the time until the record lapses, by the store's clock; 0 if it has.

        None when there is no record, or when the store cannot tell.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        ...


class Verdict(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    #: It works; there is something to know, or to do before it is too late.
    WARNING = "warning"
    #: Locks do not work as they should.
    WRONG = "wrong"


class Finding(NamedTuple):
    """One thing that was found out about a store's server.

    Attributes:
        server: which server, for people.
        subject: what it is about, one or two words, always the same; "reachable" for whether the
            server answers.
        verdict: what it means.
        says: what was found, in plain words.
        advice: what to do about it, if something should be done.
        facts: the same for programs: numbers, strings, booleans.
    """

    server: str
    subject: str
    verdict: Verdict
    says: str
    advice: str = ""
    facts: Mapping[str, str | float | bool | None] = MappingProxyType({})


@runtime_checkable
class ExaminableStore(LeaseStore, Protocol):
    """A store that can say how its servers are."""

    def examine(self) -> list[Finding]:
        """Return the findings about each server. Takes a few seconds; raises for no failure.

        Writes a record of its own, under a random lock id, and removes it.
        """
        ...
