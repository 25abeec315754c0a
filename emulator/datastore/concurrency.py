"""Concurrency control: what happens between transactions on the same data.

The engine calls a `ConcurrencyControl` at each point where a mode may have to act.
Storage and RPCs know nothing of modes:

    mode          reading, querying     writing              validate
    optimistic    -                     -                    abort if a read is stale
    pessimistic   take shared locks     wait for readers     -
    entity groups refuse the 26th group -                    abort if a group moved on

`Optimistic` gives serializability by validation at commit: a commit is refused if
anything the transaction has read, be it an entity, the absence of one, or a
query's result including what would have been in it, was changed by a commit after
the transaction's snapshot.
"""

from collections.abc import Iterable
from typing import ClassVar, NamedTuple, Protocol

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

    `validate` and `committed` are called under the writer lock, the others without
    any lock: they may wait. Each may raise `DatastoreError` ABORTED, but for
    `committed` and `finished`.
    """

    name: ClassVar[str]

    def reading(self, transaction: Transaction, entities: Iterable[EntityId]) -> None:
        """The transaction is about to look up entities."""

    def querying(self, transaction: Transaction, seen: QueryRange) -> None:
        """The transaction has run a query that saw this range."""

    def writing(self, transaction: Transaction | None, entities: Iterable[EntityId]) -> None:
        """A commit is about to change entities; None: outside any transaction."""

    def validate(self, transaction: Transaction) -> None:
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


class Optimistic:
    """First commit wins; the others are aborted when they try to commit."""

    name: ClassVar[str] = "optimistic"

    def __init__(self, table: TransactionTable) -> None:
        self._table = table
        # Ascending versions; only touched under the writer lock.
        self._recent: list[_Commit] = []
        self._remembered = 0
        # Changes up to this version were dropped to bound memory.
        self._dropped_until = 0

    def reading(self, transaction: Transaction, entities: Iterable[EntityId]) -> None:
        """Remember what is read, for validation."""
        transaction.keys_read.update(entities)

    def querying(self, transaction: Transaction, seen: QueryRange) -> None:
        """Remember what is read, for validation."""
        transaction.queries.append(seen)

    def writing(self, transaction: Transaction | None, entities: Iterable[EntityId]) -> None:
        """Writers never wait."""

    def validate(self, transaction: Transaction) -> None:
        """Abort the transaction if what it has read is no longer true.

        Raises:
            DatastoreError: ABORTED.
        """
        if not transaction.keys_read and not transaction.queries:
            return
        if transaction.snapshot < self._dropped_until:
            raise contention()
        for commit in reversed(self._recent):
            if commit.version <= transaction.snapshot:
                return
            for change in commit.changes:
                if (change.partition, change.key) in transaction.keys_read:
                    raise contention()
                if any(seen.affected_by(change) for seen in transaction.queries):
                    raise contention()

    def committed(self, version: int, changes: list[EntityChange]) -> None:
        """Remember the changes for as long as a transaction may have read before them."""
        self._recent.append(_Commit(version, changes))
        self._remembered += len(changes)
        floor = self._table.floor()
        obsolete = 0
        for commit in self._recent:
            overfull = self._remembered > MAX_REMEMBERED_CHANGES
            if commit.version > floor and not overfull:
                break
            if commit.version > floor:
                self._dropped_until = commit.version
            self._remembered -= len(commit.changes)
            obsolete += 1
        del self._recent[:obsolete]

    def finished(self, transaction: Transaction) -> None:
        """Nothing is held."""

    def clear(self) -> None:
        """Forget all changes."""
        self._recent.clear()
        self._remembered = 0


class Unvalidated(Optimistic):
    """Optimistic without validation: loses updates.

    Not a mode to run: tests of serializability use it to show that they would
    notice.
    """

    name: ClassVar[str] = "unvalidated"

    def validate(self, transaction: Transaction) -> None:
        """Let everything pass."""


MODES: dict[str, type[Optimistic]] = {Optimistic.name: Optimistic}
