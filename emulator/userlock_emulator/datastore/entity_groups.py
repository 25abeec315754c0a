"""The legacy mode: optimistic, with entity groups as the unit of contention.

An entity group is a root entity and its descendants. As documented for "Optimistic With Entity
Groups", a transaction touches at most 25 groups, its queries need an ancestor, and it is aborted if
any entity of a group that it has read or writes was changed since the transaction began.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.concurrency import Optimistic
from userlock_emulator.datastore.encoding import after_descendants, root_of
from userlock_emulator.datastore.errors import contention, invalid
from userlock_emulator.datastore.rows import Span
from userlock_emulator.datastore.transactions import EntityChange, EntityId, QueryRange, Transaction

MAX_GROUPS = 25

# The partition and the encoded path of the root entity.
_Group = tuple[Partition, bytes]


class OptimisticWithEntityGroups(Optimistic):
    """The legacy mode: the first commit to a group wins."""

    name: ClassVar[str] = "optimistic-with-entity-groups"

    def reading(self, transaction: Transaction, entities: Iterable[EntityId]) -> int:
        """Remember the groups.

        Raises:
            DatastoreError: INVALID_ARGUMENT if there are too many.
        """
        self._touch(transaction, entities)
        return transaction.snapshot

    def querying(
        self, transaction: Transaction, seen: QueryRange, results: Iterable[EntityId]
    ) -> bool:
        """Remember the groups of the query's ancestors.

        Raises:
            DatastoreError: INVALID_ARGUMENT if it has no ancestor.
        """
        for conjunction in seen.query.disjunction:
            self._touch(transaction, [(seen.partition, _root_of_span(conjunction.keys))])
        return True

    def writing(
        self, transaction: Transaction | None, entities: Iterable[EntityId]
    ) -> AbstractContextManager[None]:
        """Remember the groups and return a context that does nothing: writers never wait."""
        if transaction is not None:
            self._touch(transaction, entities)
        return nullcontext()

    def validate(self, transaction: Transaction, *, writes: bool) -> None:
        """Abort a transaction that writes if one of its groups has changed.

        Raises:
            DatastoreError: ABORTED.
        """
        if not writes or not transaction.keys_read:
            return

        def outdates(change: EntityChange) -> bool:
            return _group(change.partition, change.key) in transaction.keys_read

        if self._recent.any_since(transaction.snapshot, outdates):
            raise contention()

    def _touch(self, transaction: Transaction, entities: Iterable[EntityId]) -> None:
        """Add to the transaction's groups, which are identified by their roots."""
        transaction.keys_read.update(_group(*entity) for entity in entities)
        if len(transaction.keys_read) > MAX_GROUPS:
            raise invalid("operating on too many entity groups in a single transaction.")


def _group(partition: Partition, key: bytes) -> _Group:
    return (partition, root_of(key))


def _root_of_span(keys: Span) -> bytes:
    """Return the root of the one group that contains a range of keys."""
    if keys.low:
        root = root_of(keys.low)
        if keys.high <= after_descendants(root):
            return root
    raise invalid("Only ancestor queries are allowed inside transactions.")
