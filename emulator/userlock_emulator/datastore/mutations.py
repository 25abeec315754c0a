"""Mutations: checked before a commit takes the writer lock, then applied under it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from userlock_emulator.datastore import validation
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.encoding import encode_key, encode_path
from userlock_emulator.datastore.errors import Code, DatastoreError, invalid
from userlock_emulator.datastore.ids import IdAllocator
from userlock_emulator.datastore.indexing import IndexedValues, indexed_values
from userlock_emulator.datastore.masks import Mask, write_mask
from userlock_emulator.datastore.protos import (
    Entity,
    EntityPb,
    Key,
    KeyPb,
    Message,
    Mutation,
    MutationPb,
    MutationResult,
    timestamp,
)
from userlock_emulator.datastore.rows import StoredEntity
from userlock_emulator.datastore.transactions import EntityChange
from userlock_emulator.datastore.transforms import apply_transform, check_transforms
from userlock_emulator.datastore.writer import Writer

# "The following sequences of mutations affecting a single entity are not permitted
# in a single Commit request" (CommitRequest.mutations).
_FORBIDDEN = {
    ("insert", "insert"), ("update", "insert"), ("upsert", "insert"), ("delete", "update"),
}  # fmt: skip


class Content(NamedTuple):
    """The content to store: an entity without its key, and its index values."""

    data: bytes
    values: IndexedValues


@dataclass(frozen=True)
class Revision:
    """Content that depends on the stored entity (masks, transforms)."""

    entity: EntityPb
    mask: Mask | None
    transforms: tuple[Message, ...]

    def apply(
        self, old: StoredEntity | None, partition: Partition, time: int, result: Message
    ) -> Content:
        """Return the revised entity. The results of transforms go into `result`.

        Raises:
            DatastoreError: INVALID_ARGUMENT if the entity exceeds a limit.
        """
        entity = Entity()
        if self.mask is None:
            entity.CopyFrom(self.entity)
        else:
            if old is not None:
                entity.MergeFromString(old.data)
            self.mask.overwrite(entity, self.entity)
        for transform in self.transforms:
            result.transform_results.append(apply_transform(transform, entity, time))
        validation.check_entity(entity, partition)
        return _content(entity)


@dataclass(slots=True)
class PreparedMutation:
    """A checked mutation.

    `encoded` is None while the key is incomplete. `content` is None for a deletion.
    """

    operation: str
    key: KeyPb
    partition: Partition
    kind: str
    encoded: bytes | None
    content: Content | Revision | None
    base_version: int | None
    fail_on_conflict: bool


def prepare(
    mutations: Iterable[MutationPb], project: str, database: str, *, transactional: bool
) -> list[PreparedMutation]:
    """Check the mutations of one commit.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    prepared = [_prepare(mutation, project, database) for mutation in mutations]
    latest: dict[tuple[Partition, bytes], PreparedMutation] = {}
    for mutation in prepared:
        if mutation.encoded is None:
            continue
        earlier = latest.setdefault((mutation.partition, mutation.encoded), mutation)
        if earlier is mutation:
            continue
        if not transactional:
            raise invalid(
                "A non-transactional commit may not contain multiple mutations affecting"
                " the same entity."
            )
        if (earlier.operation, mutation.operation) in _FORBIDDEN:
            raise invalid(
                f"Cannot {earlier.operation} then {mutation.operation} an entity in the same"
                " request."
            )
        if earlier.base_version != mutation.base_version:
            raise invalid("Mutations for the same entity must have the same base version.")
        latest[mutation.partition, mutation.encoded] = mutation
    return prepared


def _prepare(mutation: MutationPb, project: str, database: str) -> PreparedMutation:
    operation = mutation.WhichOneof("operation")
    if operation is None:
        raise invalid("Mutation is missing operation.")
    entity: EntityPb | None = None
    if operation == "delete":
        if mutation.property_transforms:
            raise invalid("Delete mutation cannot have PropertyTransforms.")
        key = mutation.delete
    else:
        entity = getattr(mutation, operation)
        key = entity.key
    partition = validation.check_key(
        key,
        project,
        database,
        allow_incomplete=operation in ("insert", "upsert"),
        allow_reserved=False,
    )
    base_version = _base_version(mutation)
    content: Content | Revision | None = None
    if entity is not None:
        validation.check_entity(entity, partition)
        # The key is stored once, as the row's key.
        kept_key = Key()
        kept_key.CopyFrom(key)
        key = kept_key
        entity.ClearField("key")
        mask = write_mask(mutation)
        if mask is None and not mutation.property_transforms:
            content = _content(entity)
        else:
            check_transforms(mutation.property_transforms, partition)
            content = Revision(entity, mask, tuple(mutation.property_transforms))
    return PreparedMutation(
        operation=operation,
        key=key,
        partition=partition,
        kind=key.path[-1].kind,
        encoded=None if validation.is_incomplete(key) else encode_key(key),
        content=content,
        base_version=base_version,
        fail_on_conflict=_fails_on_conflict(mutation),
    )


def _content(entity: EntityPb) -> Content:
    values = indexed_values(entity)
    if sum(map(len, values.values())) > validation.MAX_INDEX_ENTRIES:
        raise invalid(f"The entity has more than {validation.MAX_INDEX_ENTRIES} index entries.")
    return Content(entity.SerializeToString(), values)


def _base_version(mutation: MutationPb) -> int | None:
    """Return the version that a mutation expects. Update times are versions here."""
    detection = mutation.WhichOneof("conflict_detection_strategy")
    if detection is None:
        return None
    operation = mutation.WhichOneof("operation")
    changed = getattr(mutation, operation)
    if validation.is_incomplete(changed if operation == "delete" else changed.key):
        raise invalid("conflict detection is not allowed for incomplete keys")
    if detection == "update_time":
        return validation.exact_microseconds(mutation.update_time)
    if mutation.base_version < 0:
        raise invalid(f"Invalid base_version: {mutation.base_version}, it should be >= 0")
    if operation == "insert" and mutation.base_version:
        raise invalid("Cannot insert an entity with a base version greater than zero")
    if operation == "update" and not mutation.base_version:
        raise invalid("Cannot update an entity with a base version set to zero")
    return int(mutation.base_version)


def _fails_on_conflict(mutation: MutationPb) -> bool:
    strategy = mutation.conflict_resolution_strategy
    if strategy and mutation.WhichOneof("conflict_detection_strategy") is None:
        raise invalid("cannot set a conflict resolution strategy if no detection strategy was set")
    if strategy not in Mutation.ConflictResolutionStrategy.values():
        raise invalid("Unknown conflict resolution strategy.")
    return bool(strategy == Mutation.FAIL)


class CommitApplier:
    """The mutations of one commit, applied inside the storage's `write()`.

    Args:
        writer: of the commit.
        ids: for keys without an identifier.
        results: a list of messages, to which each mutation adds its result.
    """

    def __init__(self, writer: Writer, ids: IdAllocator, results: Message) -> None:
        self._writer = writer
        self._ids = ids
        self._results = results
        time = timestamp(writer.version)
        self._new = MutationResult(version=writer.version, create_time=time, update_time=time)
        # The entities before this commit, in the order of their first change.
        self._found: dict[tuple[Partition, bytes], StoredEntity | None] = {}
        self._before: dict[tuple[Partition, bytes], IndexedValues | None] = {}
        self._after: dict[tuple[Partition, bytes], tuple[str, IndexedValues | None]] = {}

    @property
    def changes(self) -> list[EntityChange]:
        """Return the changes of the commit so far."""
        return [
            EntityChange(*entity_id[:1], kind, entity_id[1], self._before[entity_id], after)
            for entity_id, (kind, after) in self._after.items()
        ]

    def load(self, mutations: Iterable[PreparedMutation]) -> None:
        """Read the entities that the mutations change."""
        intern = self._writer.catalog.intern_partition
        self._writer.load([(intern(m.partition), m.encoded) for m in mutations if m.encoded])

    def apply(self, mutation: PreparedMutation) -> None:
        """Apply one mutation and append its result.

        Raises:
            DatastoreError: ALREADY_EXISTS, NOT_FOUND, FAILED_PRECONDITION for a conflict with
                strategy FAIL, or INVALID_ARGUMENT if masks and transforms make an
                entity exceed a limit. The caller must give up the whole commit.
        """
        writer = self._writer
        partition = writer.catalog.intern_partition(mutation.partition)
        result = self._results.add()
        if mutation.encoded is None:
            encoded = self._complete(mutation, partition)
            result.key.CopyFrom(mutation.key)
            validation.complete_key(result.key, mutation.partition)
        else:
            encoded = mutation.encoded
        entity_id = (mutation.partition, encoded)
        old = writer.get(partition, encoded)
        found = self._found.setdefault(entity_id, old)
        if mutation.base_version is not None and self._conflicts(mutation, partition, found):
            if mutation.fail_on_conflict:
                raise DatastoreError(
                    Code.FAILED_PRECONDITION,
                    f"the stored version ({0 if found is None else found.version}) does not match"
                    f" the required base version ({mutation.base_version})",
                )
            result.conflict_detected = True
            _describe(result, old, writer.version)
            return
        if mutation.operation == "insert" and old is not None:
            raise DatastoreError(Code.ALREADY_EXISTS, f"entity already exists: {_name(mutation)}")
        if mutation.operation == "update" and old is None:
            raise DatastoreError(Code.NOT_FOUND, f"no entity to update: {_name(mutation)}")
        self._store(mutation, partition, encoded, old, result)

    def _store(
        self,
        mutation: PreparedMutation,
        partition: int,
        encoded: bytes,
        old: StoredEntity | None,
        result: Message,
    ) -> None:
        writer = self._writer
        content = mutation.content
        if isinstance(content, Revision):
            content = content.apply(old, mutation.partition, writer.version, result)
        if content is None and old is None:
            result.version = writer.version
            return
        replaced: tuple[StoredEntity, IndexedValues] | None = None
        if old is not None:
            if content is not None and content.data == old.data:
                # "If the mutation doesn't change anything on the server, then the
                # version will be the version of the current entity".
                _describe(result, old, writer.version)
                return
            old_entity = Entity.FromString(old.data)
            if content is not None and Entity.FromString(content.data) == old_entity:
                _describe(result, old, writer.version)
                return
            replaced = (old, indexed_values(old_entity))
        if content is None:
            assert replaced is not None
            writer.delete(partition, mutation.kind, encoded, replaced)
            result.version = writer.version
        else:
            data, values = content
            created = writer.put(partition, mutation.kind, encoded, data, values, replaced)
            if created == writer.version:
                result.MergeFrom(self._new)
            else:
                _describe(result, StoredEntity(writer.version, created, data), writer.version)
        entity_id = (mutation.partition, encoded)
        self._before.setdefault(entity_id, None if replaced is None else replaced[1])
        self._after[entity_id] = (mutation.kind, None if content is None else content.values)

    def _complete(self, mutation: PreparedMutation, partition: int) -> bytes:
        last = mutation.key.path[-1]
        while True:
            last.id = self._ids.allocate(self._writer)
            encoded = encode_path(mutation.key.path)
            if not self._writer.is_taken(partition, encoded):
                return encoded

    def _conflicts(
        self, mutation: PreparedMutation, partition: int, found: StoredEntity | None
    ) -> bool:
        """Return whether the entity changed since the mutation's base version.

        For a missing entity the base version is the version of the snapshot in which it was missing
        ("EntityResult.version"). It conflicts if the entity was deleted after that. 0 means "never
        seen".
        """
        if found is not None:
            return found.version != mutation.base_version
        if not mutation.base_version:
            return False
        encoded = mutation.encoded
        if encoded is None:
            return False
        return self._writer.deleted_at(partition, encoded) > mutation.base_version


def _describe(result: Message, entity: StoredEntity | None, version: int) -> None:
    """Fill in the version and the times of the entity as it is now on the server."""
    if entity is None:
        result.version = version
        return
    result.version = entity.version
    result.create_time.CopyFrom(timestamp(entity.created))
    result.update_time.CopyFrom(timestamp(entity.version))


def _name(mutation: PreparedMutation) -> str:
    """Return the key for an error message, without the partition."""
    return "/".join(f"{element.kind}:{element.name or element.id}" for element in mutation.key.path)
