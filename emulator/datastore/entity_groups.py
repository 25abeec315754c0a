"""The legacy mode: optimistic, with entity groups as the unit of contention.

An entity group is a root entity and its descendants. As documented for "Optimistic
With Entity Groups", a transaction touches at most 25 groups, its queries need an
ancestor, and it is aborted if a group that it has read or writes was changed by
anybody since the transaction began, whichever entity of the group that was.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from emulator.datastore.catalog import Partition
from emulator.datastore.concurrency import Optimistic
from emulator.datastore.encoding import after_descendants, root_of
from emulator.datastore.errors import contention, invalid
from emulator.datastore.rows import Span
from emulator.datastore.transactions import EntityChange, EntityId, QueryRange, Transaction

MAX_GROUPS = 25

# The partition and the encoded path of the root entity.
_Group = tuple[Partition, bytes]


class OptimisticWithEntityGroups(Optimistic):
    """First commit to a group wins."""

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
        """Remember the groups. Writers never wait."""
        if transaction is not None:
            self._touch(transaction, entities)
        return nullcontext()

    def validate(self, transaction: Transaction, *, writes: bool) -> None:
        """Abort a transaction that writes if one of its groups has moved on.

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
        """Add to the transaction's groups, which are remembered as their roots."""
        transaction.keys_read.update(_group(*entity) for entity in entities)
        if len(transaction.keys_read) > MAX_GROUPS:
            raise invalid("operating on too many entity groups in a single transaction.")


def _group(partition: Partition, key: bytes) -> _Group:
    return (partition, root_of(key))


def _root_of_span(keys: Span) -> bytes:
    """The root of the one group in which a range of keys lies."""
    if keys.low:
        root = root_of(keys.low)
        if keys.high <= after_descendants(root):
            return root
    raise invalid("Only ancestor queries are allowed inside transactions.")
