"""Concurrency control between transactions on the same data.

The engine calls a `ConcurrencyControl` at each point where a mode may have to act. Storage and RPCs
do not depend on the mode:

    mode          reading              querying            writing           validate
    optimistic    at start             at start            -                 all reads
    pessimistic   now, shared locks    now, shared locks   exclusive locks   queries
    entity groups at start             with ancestor       -                 groups

`Optimistic` gives serializability by validation at commit. A commit is refused if another commit
has changed anything that the transaction had read. That includes entities, missing entities, and
query results (also entities that would now be part of a result).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, NamedTuple, Protocol

from userlock_emulator.datastore.activity import Locks
from userlock_emulator.datastore.clock import VersionClock
from userlock_emulator.datastore.errors import contention
from userlock_emulator.datastore.transactions import (
    EntityChange,
    EntityId,
    QueryRange,
    Transaction,
    TransactionTable,
)

# Beyond this many remembered changes the oldest are dropped, and transactions that would need them
# are aborted. This bounds the memory that an abandoned transaction can take.
MAX_REMEMBERED_CHANGES = 100_000


class ConcurrencyControl(Protocol):
    """A concurrency mode. Several threads call each method.

    Read-only transactions never call it. `validate` and `committed` are called under the writer
    lock, the others without any lock, so that they may wait. All except `committed`, `finished` and
    `clear` may raise `DatastoreError` ABORTED.
    """

    name: ClassVar[str]

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for other transactions."""

    def locks(self) -> Locks:
        """Return the locks that are held and waited for."""

    def reading(self, transaction: Transaction, entities: Iterable[EntityId]) -> int:
        """Return the time at which the transaction's next lookup reads."""

    def query_time(self, transaction: Transaction) -> int:
        """Return the time at which the transaction's next query reads."""

    def querying(
        self, transaction: Transaction, seen: QueryRange, results: Iterable[EntityId]
    ) -> bool:
        """Record a query of the transaction. False: the result is out of date, repeat the query."""

    def writing(
        self, transaction: Transaction | None, entities: Iterable[EntityId]
    ) -> AbstractContextManager[None]:
        """Surround a commit that changes entities. `transaction` is None outside transactions."""

    def validate(self, transaction: Transaction, *, writes: bool) -> None:
        """Check that the transaction may commit now."""

    def committed(self, version: int, changes: list[EntityChange]) -> None:
        """Record a stored commit, transactional or not, just before it becomes visible."""

    def finished(self, transaction: Transaction) -> None:
        """Record the end of a transaction, with whatever outcome."""

    def clear(self) -> None:
        """Forget all data and all transactions."""


class _Commit(NamedTuple):
    version: int
    changes: list[EntityChange]


class RecentChanges:
    """The changes of recent commits, back to the oldest time that a transaction may have read.

    Thread-safe. An answer stays true only while the caller holds the writer lock.
    """

    def __init__(self, table: TransactionTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        # Ascending versions.
        self._commits: deque[_Commit] = deque()
        self._remembered = 0
        # Changes up to this version were dropped to bound memory.
        self._dropped_until = 0

    def add(self, version: int, changes: list[EntityChange]) -> None:
        """Add a commit, and drop the commits that no transaction can need."""
        floor = self._table.floor()
        with self._lock:
            self._commits.append(_Commit(version, changes))
            self._remembered += len(changes)
            while self._commits:
                oldest = self._commits[0]
                needed = oldest.version > floor
                if needed and self._remembered <= MAX_REMEMBERED_CHANGES:
                    break
                if needed:
                    self._dropped_until = oldest.version
                self._remembered -= len(oldest.changes)
                self._commits.popleft()

    def any_since(self, time: int, matches: Callable[[EntityChange], bool]) -> bool:
        """Return whether a matching entity was changed after `time`, or may have been."""
        with self._lock:
            if time < self._dropped_until:
                return True
            for commit in reversed(self._commits):
                if commit.version <= time:
                    break
                if any(matches(change) for change in commit.changes):
                    return True
            return False

    def clear(self) -> None:
        """Forget all commits."""
        with self._lock:
            self._commits.clear()
            self._remembered = 0


class Optimistic:
    """First commit wins; the others are aborted when they try to commit."""

    name: ClassVar[str] = "optimistic"

    def __init__(self, table: TransactionTable, clock: VersionClock) -> None:
        self._recent = RecentChanges(table)

    @property
    def waiting(self) -> int:
        """Return 0: no request ever waits."""
        return 0

    def locks(self) -> Locks:
        """Return none: no transaction holds a lock."""
        return Locks()

    def reading(self, transaction: Transaction, entities: Iterable[EntityId]) -> int:
        """Return the time at which the transaction began."""
        transaction.keys_read.update(entities)
        return transaction.snapshot

    def query_time(self, transaction: Transaction) -> int:
        """Return the time at which the transaction began."""
        return transaction.snapshot

    def querying(
        self, transaction: Transaction, seen: QueryRange, results: Iterable[EntityId]
    ) -> bool:
        """Remember the query for validation."""
        transaction.queries.append(seen)
        return True

    def writing(
        self, transaction: Transaction | None, entities: Iterable[EntityId]
    ) -> AbstractContextManager[None]:
        """Return a context that does nothing: writers never wait."""
        return nullcontext()

    def validate(self, transaction: Transaction, *, writes: bool) -> None:
        """Abort a transaction that writes if its reads are out of date.

        Raises:
            DatastoreError: ABORTED.
        """
        if not writes or not (transaction.keys_read or transaction.queries):
            # A transaction that only reads is serializable at its snapshot, one that only writes at
            # present.
            return

        def outdates(change: EntityChange) -> bool:
            if (change.partition, change.key) in transaction.keys_read:
                return True
            return any(seen.affected_by(change) for seen in transaction.queries)

        if self._recent.any_since(transaction.snapshot, outdates):
            raise contention()

    def committed(self, version: int, changes: list[EntityChange]) -> None:
        """Remember the changes."""
        self._recent.add(version, changes)

    def finished(self, transaction: Transaction) -> None:
        """Do nothing: no lock is held."""

    def clear(self) -> None:
        """Forget all changes."""
        self._recent.clear()


class Unvalidated(Optimistic):
    """Optimistic concurrency without validation: loses updates.

    Not a mode for use. Tests of serializability use it as their negative control.
    """

    name: ClassVar[str] = "unvalidated"

    def validate(self, transaction: Transaction, *, writes: bool) -> None:
        """Let everything pass."""
