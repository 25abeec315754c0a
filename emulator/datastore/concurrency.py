"""Concurrency control: what happens between transactions on the same data.

The engine calls a `ConcurrencyControl` at each point where a mode may have to act.
Storage and RPCs know nothing of modes:

    mode          reading              querying            writing           validate
    optimistic    at the beginning     at the beginning    -                 all reads
    pessimistic   now, shared locks    now, shared locks   exclusive locks   queries
    entity groups at the beginning     with ancestor       -                 groups

`Optimistic` gives serializability by validation at commit: a commit is refused if
anything the transaction has read, be it an entity, the absence of one, or a
query's result including what would have been in it, was changed by a commit after
it was read.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, NamedTuple, Protocol

from emulator.datastore.clock import VersionClock
from emulator.datastore.errors import contention
from emulator.datastore.transactions import (
    EntityChange,
    EntityId,
    QueryRange,
    Transaction,
    TransactionTable,
)

# Beyond this many remembered changes the oldest are dropped, and with them the
# transactions that would need them: an abandoned transaction must not eat memory.
MAX_REMEMBERED_CHANGES = 100_000


class ConcurrencyControl(Protocol):
    """A concurrency mode. All methods are called by several threads.

    Read-only transactions never come here. `validate` and `committed` are called
    under the writer lock, the others without any lock: they may wait. Each may raise
    `DatastoreError` ABORTED, but for `committed`, `finished` and `clear`.
    """

    name: ClassVar[str]

    @property
    def waiting(self) -> int:
        """How many requests wait for transactions of others."""

    def reading(self, transaction: Transaction, entities: Iterable[EntityId]) -> int:
        """The transaction looks up entities next: at which time?"""

    def query_time(self, transaction: Transaction) -> int:
        """The transaction runs a query next: at which time?"""

    def querying(
        self, transaction: Transaction, seen: QueryRange, results: Iterable[EntityId]
    ) -> bool:
        """The transaction has run a query. False: the result is out of date, run it again."""

    def writing(
        self, transaction: Transaction | None, entities: Iterable[EntityId]
    ) -> AbstractContextManager[None]:
        """Surrounds a commit that changes entities; None: outside any transaction."""

    def validate(self, transaction: Transaction, *, writes: bool) -> None:
        """The transaction's commit is next: may it be?"""

    def committed(self, version: int, changes: list[EntityChange]) -> None:
        """A commit, transactional or not, has been stored and becomes visible next."""

    def finished(self, transaction: Transaction) -> None:
        """The transaction is over, however it ended."""

    def clear(self) -> None:
        """All data and all transactions are gone."""


class _Commit(NamedTuple):
    version: int
    changes: list[EntityChange]


class RecentChanges:
    """The changes of the last commits, as far back as a transaction may have read.

    Thread-safe. Whoever needs an answer that stays true asks under the writer lock.
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
        """Remember a commit, and forget what no transaction can need."""
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
        """Whether something that `matches` was changed after `time`, or may have been."""
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
        """Forget all."""
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
        """Nobody ever waits."""
        return 0

    def reading(self, transaction: Transaction, entities: Iterable[EntityId]) -> int:
        """All reads see the state at the transaction's beginning."""
        transaction.keys_read.update(entities)
        return transaction.snapshot

    def query_time(self, transaction: Transaction) -> int:
        """All reads see the state at the transaction's beginning."""
        return transaction.snapshot

    def querying(
        self, transaction: Transaction, seen: QueryRange, results: Iterable[EntityId]
    ) -> bool:
        """Remember what was seen, for validation."""
        transaction.queries.append(seen)
        return True

    def writing(
        self, transaction: Transaction | None, entities: Iterable[EntityId]
    ) -> AbstractContextManager[None]:
        """Writers never wait."""
        return nullcontext()

    def validate(self, transaction: Transaction, *, writes: bool) -> None:
        """Abort a transaction that writes if what it has read is no longer true.

        Raises:
            DatastoreError: ABORTED.
        """
        if not writes or not (transaction.keys_read or transaction.queries):
            # What only reads is serializable at its snapshot, what only writes now.
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
        """Nothing is held."""

    def clear(self) -> None:
        """Forget all changes."""
        self._recent.clear()


class Unvalidated(Optimistic):
    """Optimistic without validation: loses updates.

    Not a mode to run: tests of serializability use it to show that they would
    notice.
    """

    name: ClassVar[str] = "unvalidated"

    def validate(self, transaction: Transaction, *, writes: bool) -> None:
        """Let everything pass."""
