"""Queries on the metadata kinds: `__namespace__`, `__kind__` and `__property__`.

Their entities are virtual: each query derives them from the indexes that have entries at its time,
then treats them like any others. A property is therefore known by its indexed values alone, as
documented.

    __namespace__   key: the namespace's name, or the id 1 for the default namespace
    __kind__        key: the kind's name
    __property__    key: the property's name, below that of its kind;
                    property_representation: the types of its values
"""

from collections.abc import Iterator, Sequence

from userlock_emulator.datastore.catalog import KIND_INDEX, Partition
from userlock_emulator.datastore.cursors import Place
from userlock_emulator.datastore.encoding import REPRESENTATIONS, encode_key
from userlock_emulator.datastore.indexing import indexed_values
from userlock_emulator.datastore.protos import Entity, EntityPb
from userlock_emulator.datastore.query import (
    KIND_METADATA,
    NAMESPACE_METADATA,
    PROPERTY_METADATA,
    ParsedQuery,
    Row,
)
from userlock_emulator.datastore.query_runner import QueryRunner, by_position
from userlock_emulator.datastore.rows import EVERYTHING, Reader, Span, StoredEntity

_DEFAULT_NAMESPACE_ID = 1


class MetadataRunner(QueryRunner):
    """The runner of queries on a metadata kind."""

    def __init__(self, reader: Reader, query: ParsedQuery, partition: Partition) -> None:
        super().__init__(reader, query)
        self._partition = partition
        self._entities = {encode_key(entity.key): entity for entity in self._all()}

    def load(self, key: bytes) -> StoredEntity:
        """Return the virtual entity at `key`, which is always as new as the query."""
        properties = Entity(properties=self._entities[key].properties)
        time = self._reader.time
        return StoredEntity(time, time, properties.SerializeToString())

    def count(self, limit: int) -> int | None:
        """Return None: virtual entities have no entries that could be counted."""
        return None

    def tally(self, names: Sequence[str]) -> None:
        """Return None: nor have their values."""

    def _streams(self, start: Place | None, wanted: int | None) -> list[Iterator[Row]]:
        rows: list[Row] = []
        for key, entity in self._entities.items():
            rows += self._query.rows(key, indexed_values(entity))
        return [iter(sorted(rows, key=by_position))]

    def _all(self) -> Iterator[EntityPb]:
        if self._query.kind == NAMESPACE_METADATA:
            return self._namespaces()
        number = self._query.partition
        if number is None:
            return iter(())
        if self._query.kind == KIND_METADATA:
            return self._kinds(number)
        return self._properties(number)

    def _kinds(self, number: int) -> Iterator[EntityPb]:
        for kind, name, scope in self._reader.catalog.scopes_of(number):
            if name == KIND_INDEX and self._has_entries(scope):
                yield _kind(kind)

    def _namespaces(self) -> Iterator[EntityPb]:
        for partition, number in self._reader.catalog.partitions().items():
            if partition[:2] == self._partition[:2] and self._has_entities(number):
                entity = Entity()
                element = entity.key.path.add(kind=NAMESPACE_METADATA)
                if partition.namespace:
                    element.name = partition.namespace
                else:
                    element.id = _DEFAULT_NAMESPACE_ID
                yield entity

    def _properties(self, number: int) -> Iterator[EntityPb]:
        for kind, name, scope in self._reader.catalog.scopes_of(number):
            if name == KIND_INDEX:
                continue
            representations = [
                representation
                for values, representation in REPRESENTATIONS
                if self._has_entries(scope, Span(*values))
            ]
            if representations:
                entity = _kind(kind)
                entity.key.path.add(kind=PROPERTY_METADATA, name=name)
                array = entity.properties["property_representation"].array_value
                for representation in representations:
                    array.values.add(string_value=representation)
                yield entity

    def _has_entities(self, number: int) -> bool:
        return next(self._reader.scan_keys(number), None) is not None

    def _has_entries(self, scope: int, values: Span = EVERYTHING) -> bool:
        return next(self._reader.scan_index(scope, values), None) is not None


def _kind(name: str) -> EntityPb:
    entity = Entity()
    entity.key.path.add(kind=KIND_METADATA, name=name)
    return entity


def runner(reader: Reader, query: ParsedQuery, partition: Partition) -> QueryRunner:
    """Return the runner for a query on this view of the database."""
    if query.on_metadata:
        return MetadataRunner(reader, query, partition)
    return QueryRunner(reader, query)
