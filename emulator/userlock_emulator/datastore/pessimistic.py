"""The pessimistic mode: locks delay other transactions, instead of aborting them at commit.

A lookup takes shared locks and then reads the newest data. A commit takes exclusive locks on its
entities, and so waits for the transactions that have read them. Entities cannot change while a
transaction that has read them runs. Reading the newest data each time is therefore the same as
reading everything at the time of the last read.

A query locks its results in the same way. Entities that would newly appear in a query's result have
no key yet and are not locked. Validation at commit finds them and aborts the transaction.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from userlock_emulator.datastore.activity import Locks
from userlock_emulator.datastore.clock import VersionClock
from userlock_emulator.datastore.concurrency import RecentChanges
from userlock_emulator.datastore.errors import contention, expired_transaction
from userlock_emulator.datastore.locks import LockTable, Owner
from userlock_emulator.datastore.transactions import (
    EntityChange,
    EntityId,
    QueryRange,
    Transaction,
    TransactionTable,
)


class Pessimistic:
    """Reader/writer locks, held until the transaction ends."""

    name: ClassVar[str] = "pessimistic"

    def __init__(self, table: TransactionTable, clock: VersionClock) -> None:
        self._clock = clock
        self._recent = RecentChanges(table)
        self._locks = LockTable(table.sweep)
        self._owners: dict[bytes, Owner] = {}
        self._owners_lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for a lock."""
        return self._locks.waiting

    def locks(self) -> Locks:
        """Return the locks that are held and waited for."""
        with self._owners_lock:
            owners = list(self._owners.values())
        return self._locks.view(owners)

    def reading(self, transaction: Transaction, entities: Iterable[EntityId]) -> int:
        """Share the entities, then return the present time."""
        self._locks.share(self._owner(transaction), entities)
        return self._clock.read_time()

    def query_time(self, transaction: Transaction) -> int:
        """Return the present time: the results are locked afterwards."""
        return self._clock.read_time()

    def querying(
        self, transaction: Transaction, seen: QueryRange, results: Iterable[EntityId]
    ) -> bool:
        """Share the results and return whether nothing changed before they were locked."""
        self._locks.share(self._owner(transaction), results)
        if self._recent.any_since(seen.time, seen.affected_by):
            return False
        transaction.queries.append(seen)
        return True

    @contextmanager
    def writing(
        self, transaction: Transaction | None, entities: Iterable[EntityId]
    ) -> Iterator[None]:
        """Wait for the transactions that have read the entities."""
        owner = Owner.ageless() if transaction is None else self._owner(transaction)
        try:
            self._locks.take(owner, entities)
            yield
        finally:
            self._locks.release(owner)

    def validate(self, transaction: Transaction, *, writes: bool) -> None:
        """Abort the transaction if an entity has newly appeared in a query's result.

        Raises:
            DatastoreError: ABORTED.
        """
        for seen in transaction.queries:
            if self._recent.any_since(seen.time, seen.affected_by):
                raise contention()

    def committed(self, version: int, changes: list[EntityChange]) -> None:
        """Remember the changes for validation."""
        self._recent.add(version, changes)

    def finished(self, transaction: Transaction) -> None:
        """Release the transaction's locks."""
        with self._owners_lock:
            owner = self._owners.pop(transaction.id, None)
        if owner is not None:
            owner.aborted = True
            self._locks.release(owner)

    def clear(self) -> None:
        """Forget all changes. The locks ended with their transactions."""
        self._recent.clear()

    def _owner(self, transaction: Transaction) -> Owner:
        with self._owners_lock:
            if transaction.over:
                # The transaction expired meanwhile; nothing would release its new locks.
                raise expired_transaction()
            owner = self._owners.get(transaction.id)
            if owner is None:
                owner = self._owners[transaction.id] = Owner(
                    transaction=transaction, client=transaction.client
                )
            return owner
