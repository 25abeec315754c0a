"""The pessimistic mode: locks delay others, instead of aborting them at commit.

A lookup takes shared locks and then reads the newest data; a commit takes exclusive
locks on what it changes, and so waits for the transactions that have read it. What
a transaction has read cannot change while it runs, so that reading the newest data
each time is the same as reading everything at the time of the last read.

A query locks its results in the same way. Entities that would newly appear in a
query's result are not locked, as they have no key yet: they are found by validation
at commit, which aborts the transaction.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from emulator.datastore.clock import VersionClock
from emulator.datastore.concurrency import RecentChanges
from emulator.datastore.errors import contention, expired_transaction
from emulator.datastore.locks import LockTable, Owner
from emulator.datastore.transactions import (
    EntityChange,
    EntityId,
    QueryRange,
    Transaction,
    TransactionTable,
)


class Pessimistic:
    """Reader/writer locks, held until the transaction is over."""

    name: ClassVar[str] = "pessimistic"

    def __init__(self, table: TransactionTable, clock: VersionClock) -> None:
        self._clock = clock
        self._recent = RecentChanges(table)
        self._locks = LockTable(table.sweep)
        self._owners: dict[bytes, Owner] = {}
        self._owners_lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many requests wait for a lock."""
        return self._locks.waiting

    def reading(self, transaction: Transaction, entities: Iterable[EntityId]) -> int:
        """Share the entities, then read them as they are."""
        self._locks.share(self._owner(transaction), entities)
        return self._clock.read_time()

    def query_time(self, transaction: Transaction) -> int:
        """Now: the results are locked afterwards."""
        return self._clock.read_time()

    def querying(
        self, transaction: Transaction, seen: QueryRange, results: Iterable[EntityId]
    ) -> bool:
        """Share the results; they stand if nothing changed before they were locked."""
        self._locks.share(self._owner(transaction), results)
        if self._recent.any_since(seen.time, seen.affected_by):
            return False
        transaction.queries.append(seen)
        return True

    @contextmanager
    def writing(
        self, transaction: Transaction | None, entities: Iterable[EntityId]
    ) -> Iterator[None]:
        """Wait for those who have read the entities."""
        owner = Owner.ageless() if transaction is None else self._owner(transaction)
        try:
            self._locks.take(owner, entities)
            yield
        finally:
            self._locks.release(owner)

    def validate(self, transaction: Transaction, *, writes: bool) -> None:
        """Abort the transaction if something has appeared in a query's result.

        Raises:
            DatastoreError: ABORTED.
        """
        for seen in transaction.queries:
            if self._recent.any_since(seen.time, seen.affected_by):
                raise contention()

    def committed(self, version: int, changes: list[EntityChange]) -> None:
        """Remember the changes, for validation."""
        self._recent.add(version, changes)

    def finished(self, transaction: Transaction) -> None:
        """Release the transaction's locks."""
        with self._owners_lock:
            owner = self._owners.pop(transaction.id, None)
        if owner is not None:
            owner.aborted = True
            self._locks.release(owner)

    def clear(self) -> None:
        """Forget all changes. The locks went with their transactions."""
        self._recent.clear()

    def _owner(self, transaction: Transaction) -> Owner:
        with self._owners_lock:
            if transaction.over:
                # It expired meanwhile; nobody would release what it takes now.
                raise expired_transaction()
            owner = self._owners.get(transaction.id)
            if owner is None:
                owner = self._owners[transaction.id] = Owner()
            return owner
