"""The lease store: a register with one record per lock, changed by compare and swap.

A store knows nothing of leases, waiters or priorities. It keeps one record (a few hundred bytes)
under a lock id for a time to live, and changes it in five ways, each of them atomic.
`userlock.lock.record` gives the record's format, `userlock.lock.protocol` the meaning of the
changes. So the protocol is written, and tested, once for all stores.

    create   if there is none                     memcached  ms … ME
    read     with its version                                mg … v c t
    swap     if it is still of that version                  ms … C<version>
    remove   if it is still of that version                  md … C<version>
    append   a line, to the record of any version            ms … MA

`append` makes waiting cheap and safe: it needs no version, so two that append
at once do not disturb each other, and it leaves the time to live as it was.
"""

from __future__ import annotations

import abc
import contextvars
import functools
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from userlock.errors import LockServiceUnavailable
from userlock.waits import Bell, run
from userlock.words import legible

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: For how long a record stays after its time to live is over, where the store can tell the
#: time. Waiters take it over in order within that time; nobody can pass them by `create`.
GRACE_SECONDS = 3
#: The longest record, in bytes: memcached's and Datastore's own limit.
MAX_RECORD_BYTES = 1 << 20
#: The longest reason of a failure, in characters.
_MOST_REASON = 500

#: The waiting attempt: no command of it waits for a connection longer than the seconds that are
#: `left` of it. Weak, so that it outlives no attempt, whatever was raised where.
waiting_attempt: contextvars.ContextVar[Callable[[], Any]] = contextvars.ContextVar(
    "userlock_waiting_attempt", default=lambda: None
)


class StoreUnavailable(Exception):
    """The store did not say whether it did what it was asked to do.

    Raised by stores, with the client's error as `__cause__`; it never leaves the lock service.

    Attributes:
        reason: which server, and what was wrong: printable and short.
        sent: whether the command may have reached the server. False only when that is certain.
        slow: the command may yet be carried out: the reply did not come in time, or a proxy goes
            on by itself. False when the connection to the server is known to have ended.
        serves_others: the server is known to answer, so the trouble is with this record alone.
        known: the command was carried out, but not as safely as it has to be.
    """

    known = False

    def __init__(
        self, reason: str, *, sent: bool = True, slow: bool = False, serves_others: bool = False
    ) -> None:
        self.reason = legible(reason, _MOST_REASON)
        super().__init__(self.reason)
        self.sent = sent
        self.slow = slow
        self.serves_others = serves_others

    @property
    def in_doubt(self) -> bool:
        """Return whether the record tells if the command was carried out."""
        return self.sent and not self.known

    @property
    def of_demand(self) -> bool:
        """Return whether others ask for this record so much that the server is late with it."""
        return self.serves_others and self.slow

    def for_callers(self, lock_id: str) -> LockServiceUnavailable:
        """Return the error of the service. Raise it `from None`: the reason says it all."""
        error = LockServiceUnavailable(lock_id=lock_id, reason=self.reason)
        if self.__cause__ is not None:
            kind = type(self.__cause__)
            name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            error.add_note(f"The store's client raised {name}.")
        return error


class RecordRefused(StoreUnavailable):
    """The server answered that it cannot do this with this record. Nothing was done.

    The record is of a type that the store does not use, no record, or too large.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=False, serves_others=True)


class RecordBusy(RecordRefused):
    """Others change the record all the time."""

    of_demand = True


class NoConnection(StoreUnavailable):
    """All connections of this process are in use. Nothing was sent. It is no outage."""

    of_demand = True

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=False)


class Stored(NamedTuple):
    """A record as it was read.

    Attributes:
        record: the first line as created, and all lines appended since.
        version: names this state of the record, for `swap` and `remove`: opaque, of the store and
            process that gave it.
        lapsed: its time to live is over, by the store's clock, but it has not gone yet.
        seconds_left: until it lapses, by the store's clock; None where the store cannot tell.
    """

    record: bytes
    version: object
    lapsed: bool
    seconds_left: float | None = None


def numbered(stored: Stored) -> tuple[Stored, int]:
    """Return a record with its version as a fence."""
    assert isinstance(stored.version, int), "a store with other versions has numbers of its own"
    return stored, stored.version


class WakeUps(abc.ABC):
    """Wakes the waiters of this process when the store tells of a release. Thread-safe.

    A wake-up may be lost, or come for nothing. Nothing here raises for trouble with the server.
    """

    #: Free locks in a row that were found by polling, after which no wake-up is expected.
    _MOST_MISSED = 3

    def __init__(self) -> None:
        self._missed = 0

    @property
    def come(self) -> bool:
        """Return whether wake-ups may be expected, so that a waiter may poll less often."""
        return self._missed < self._MOST_MISSED

    def woken(self, bell: Bell, stored: Stored | None = None) -> None:
        """Ring the bell of a waiter that is next; `stored`: the record, if it came with it."""
        self._missed = 0
        bell.ring(woken=True, news=stored)

    def missed(self) -> None:
        """Note that a waiter found its lock free by polling."""
        self._missed += 1

    @abc.abstractmethod
    async def begin(self, lock_id: str, token: str, bell: Bell) -> None:
        """Ring the bell when the waiter of a lock with this token is next."""

    @abc.abstractmethod
    def end(self, token: str) -> None:
        """Forget the waiter. Does nothing if it is not known."""

    def wait(self, bell: Bell, seconds: float) -> None:
        """Block the thread until the bell rings, or for that long."""
        run(self.await_, bell, seconds)

    def await_(self, bell: Bell, seconds: float) -> Coroutine[Any, Any, None]:
        """Wait in a task until the bell rings, or for that long."""
        return bell.sleep(seconds)


def _at_once(verb: Callable[_P, _R]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """Return a verb as a coroutine that calls its blocking form."""

    @functools.wraps(verb, updated=())  # not the mark of an abstract method
    async def coroutine(store: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(store, verb.__name__)(*args, **kwargs)

    return cast(Callable[_P, Coroutine[Any, Any, _R]], coroutine)


class LeaseStore(abc.ABC):
    """A register for one record per lock. Thread-safe; survives fork.

    Lock ids are strings of 1 to 1,500 characters of any Unicode (lone surrogates too), and
    different ones never meet. Records and lines are bytes of printable text, records with `\\n`
    between their lines, and may come to 100,000 bytes. One of more than `MAX_RECORD_BYTES` is not
    ours: it may be read as any other bytes that no record has.

    Time to live: a record is not gone, and does not count as lapsed, before `ttl_seconds` have
    passed since `create` or `swap` was called, whatever the store's clock is worth; it is gone soon
    after `ttl_seconds` plus `GRACE_SECONDS`. A store that cannot tell how long a record has still
    to live never says lapsed, and lets it go soon after `ttl_seconds`.

    Every verb raises `StoreUnavailable`, and nothing else, for trouble with the server;
    `RecordRefused` if the trouble is with this record alone. A verb that changes a record is sent
    once; the caller reads the outcome back. `read` may be sent again; so may `append`, but only to
    the record that it was sent to first (the line may then be there twice). No verb may take much
    longer than the store's own time-outs.

    The verbs block a thread. Each has a form for tasks (`acreate` for `create`, and so on), which
    the lock service calls; by default that calls the blocking form, for stores that answer at once.
    `userlock.stores.verbs` has the base class of stores that wait for a server.
    """

    #: Only threads that serve a request can use the store: heartbeats are refused then.
    requests_only = False
    #: `fence` gives numbers that grow; otherwise it is not called.
    fences = False
    #: How many callers of one process may be in a lock's queue. Further ones wait for their turn to
    #: queue, within the process.
    most_queued = 200
    #: Wakes waiters, in a store that can tell them of a release.
    wake_ups: WakeUps | None = None

    @abc.abstractmethod
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        """Store the record if there is none. Its version; None when there is one already."""

    @abc.abstractmethod
    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        """Return the record; None when there is none.

        Args:
            lock_id: whose record.
            hurry: the server has just been slow to answer: wait for it less long than usual,
                and not on a connection that was used before.
        """

    @abc.abstractmethod
    def swap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        """Replace the record if it is still of that version, and begin a new time to live.

        The new version; None when it has changed or gone, or when the store
        cannot be sure that the version still means what it meant (a server
        may have been restarted). Nothing is written then.
        """

    @abc.abstractmethod
    def remove(self, lock_id: str, version: object) -> bool:
        """Delete the record if it is still of that version; whether that was done."""

    @abc.abstractmethod
    def append(self, lock_id: str, line: bytes) -> Stored | None:
        """Add `line` at the end of the record, if there is one; its time to live stays.

        The record as it is afterwards; None when there is none. `line` begins with the newline that
        parts it from the text before. It is left out, which the answer shows, where the store has
        no room for a longer record, or the stored value is not a record.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give up connections."""

    # --- what only some stores can do -------------------------------------------------------

    def take_over(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        """Swap as `swap` does. Lines of waiters (`+`) appended since that version may stay behind.

        By default any change since refuses it, as it refuses a swap. In all stores any other line
        does. The version is that of `record` alone: `swap` refuses it if lines stayed behind it.
        """
        return self.swap(lock_id, version, record, ttl_seconds)

    def append_and_wake(self, lock_id: str, line: bytes) -> Stored | None:
        """Append as `append` does, and wake the waiter that is first in the queue then."""
        return self.append(lock_id, line)

    def fence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        """Append as `append` does; return the record, and a number that grows with each change.

        A call that is sent after another one was answered returns a higher
        number. The number has at most 63 bits. By default it is the version,
        for stores whose versions are integers that grow, and never come back.
        """
        stored = self.append(lock_id, line)
        return None if stored is None else numbered(stored)

    # --- the verbs as coroutines ------------------------------------------------------------

    acreate, aread, aswap = _at_once(create), _at_once(read), _at_once(swap)
    atake_over, aremove, aappend = _at_once(take_over), _at_once(remove), _at_once(append)
    aappend_and_wake, afence = _at_once(append_and_wake), _at_once(fence)

    def shard_of(self, lock_id: str) -> int:
        """Return the server that has the lock, of a store on several: one may be down alone."""
        return 0
