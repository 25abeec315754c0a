"""Datastore Admin v1: exports, imports, composite indexes.

The API has no named databases, so exports and imports are of the default one. Indexes are built at
once: they are ready in the reply that creates them.
"""

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from google.protobuf import empty_pb2

from userlock_emulator.datastore import admin_protos as protos
from userlock_emulator.datastore import export_files, legacy_entities, validation
from userlock_emulator.datastore.admin_protos import Index
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.composite import CompositeIndex
from userlock_emulator.datastore.errors import Code, DatastoreError, invalid
from userlock_emulator.datastore.export_files import ExportWriter, Part
from userlock_emulator.datastore.export_urls import ExportPlaces
from userlock_emulator.datastore.index_policy import IndexPolicy
from userlock_emulator.datastore.operations import Operation, Operations
from userlock_emulator.datastore.protos import CommitRequest, EntityPb, Message
from userlock_emulator.datastore.query import KEY, Order
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.transfer import stored_entities, whole
from userlock_emulator.port.pages import page
from userlock_emulator.port.rpcs import Rpcs, Run

SERVICE = "google.datastore.admin.v1.DatastoreAdmin"

_COMMIT_ENTITIES, _COMMIT_BYTES = 500, 5_000_000
_PAGE = 100


class Admin:
    """The handler of the admin RPCs.

    Args:
        storage: the data.
        commit: the RPC, which checks imported entities like any others.
        indexes: the composite indexes.
        operations: gets the exports and imports.
        places: the places of exports.
    """

    def __init__(
        self,
        storage: Storage,
        commit: Run,
        indexes: IndexPolicy,
        operations: Operations,
        places: ExportPlaces,
    ) -> None:
        self._storage = storage
        self._commit = commit
        self._indexes = indexes
        self._operations = operations
        self._places = places

    def rpcs(self) -> Rpcs:
        """Return the service's RPCs."""
        return {
            "ExportEntities": (self.export_entities, protos.ExportEntitiesRequest),
            "ImportEntities": (self.import_entities, protos.ImportEntitiesRequest),
            "CreateIndex": (self.create_index, protos.CreateIndexRequest),
            "DeleteIndex": (self.delete_index, protos.DeleteIndexRequest),
            "GetIndex": (self.get_index, protos.GetIndexRequest),
            "ListIndexes": (self.list_indexes, protos.ListIndexesRequest),
        }

    # --- exports and imports ------------------------------------------------------------------

    def export_entities(self, request: Message) -> Message:
        """Write entities into files (RPC ExportEntities)."""
        validation.check_request_database(request.project_id, "")
        prefix = request.output_url_prefix.rstrip("/")
        now = datetime.now(UTC)
        name = f"{now:%Y-%m-%dT%H:%M:%S}_{now.microsecond // 10}"
        folder = self._places.find(prefix) / name
        metadata = protos.ExportEntitiesMetadata(
            entity_filter=request.entity_filter, output_url_prefix=f"{prefix}/{name}"
        )
        metadata.common.operation_type = protos.EXPORT_ENTITIES
        metadata.common.labels.update(request.labels)
        url = f"{prefix}/{name}/{name}{export_files.OVERALL}"

        def work(operation: Operation) -> Message:
            # Another export may have begun in the same ten microseconds: only the one that has
            # created the folder may remove it.
            writer = ExportWriter(folder, self._storage.clock.now())
            try:
                self._export(writer, request.project_id, request.entity_filter, operation)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            return protos.ExportEntitiesResponse(output_url=url)

        return self._operations.start(request.project_id, metadata, work)

    def _export(
        self, writer: ExportWriter, project: str, entity_filter: Message, operation: Operation
    ) -> None:
        for part in _parts(entity_filter):

            def chosen(part: Part = part) -> Iterator[bytes]:
                for partition, found in stored_entities(self._storage):
                    if partition[:2] != (project, "") or not _holds(part, partition):
                        continue
                    for key, stored in found:
                        entity = whole(partition, key, stored.data)
                        if part.kind in (None, entity.key.path[-1].kind):
                            operation.progress(1, len(stored.data), of=1)
                            yield legacy_entities.encode(entity)

            writer.write(part, chosen(), self._storage.clock.now)
        writer.finish()

    def import_entities(self, request: Message) -> Message:
        """Store the entities of an export (RPC ImportEntities).

        All files are read and checked before the first entity is stored.
        """
        validation.check_request_database(request.project_id, "")
        overall = self._places.find(request.input_url)
        files = export_files.outputs(overall)
        metadata = protos.ImportEntitiesMetadata(
            entity_filter=request.entity_filter, input_url=request.input_url
        )
        metadata.common.operation_type = protos.IMPORT_ENTITIES
        metadata.common.labels.update(request.labels)

        def work(operation: Operation) -> Message:
            for _ in self._imported(files, request, lambda: operation.progress(0, of=1)):
                pass
            batch = CommitRequest(project_id=request.project_id)
            batch.mode = CommitRequest.NON_TRANSACTIONAL
            for entity in self._imported(files, request, lambda: None):
                batch.mutations.add().upsert.CopyFrom(entity)
                enough = len(batch.mutations) >= _COMMIT_ENTITIES
                if enough or batch.ByteSize() > _COMMIT_BYTES:
                    self._store(batch, operation)
            if batch.mutations:
                self._store(batch, operation)
            return empty_pb2.Empty()

        return self._operations.start(request.project_id, metadata, work)

    def _store(self, batch: Message, operation: Operation) -> None:
        size, count = batch.ByteSize(), len(batch.mutations)
        operation.progress(0)  # cancelled?
        self._commit(batch)
        del batch.mutations[:]
        operation.progress(count, size)

    def _imported(
        self, files: list[Path], request: Message, found: Callable[[], None]
    ) -> Iterator[EntityPb]:
        kinds = set(request.entity_filter.kinds)
        namespaces = set(request.entity_filter.namespace_ids)
        for file in files:
            for number, record in enumerate(export_files.read(file), start=1):
                try:
                    entity = legacy_entities.decode(record, request.project_id, "")
                    partition = validation.check_key(
                        entity.key, request.project_id, "", allow_reserved=False
                    )
                    validation.check_entity(entity, partition)
                except DatastoreError as error:
                    raise DatastoreError(
                        error.code, f"{file}, record {number}: {error.message}"
                    ) from None
                if kinds and entity.key.path[-1].kind not in kinds:
                    continue
                if namespaces and entity.key.partition_id.namespace_id not in namespaces:
                    continue
                found()
                yield entity

    # --- indexes ------------------------------------------------------------------------------

    def create_index(self, request: Message) -> Message:
        """Define a composite index (RPC CreateIndex)."""
        validation.check_request_database(request.project_id, "")
        index = _composite(request.index)
        self._indexes.create(index)
        shown = _shown(index, request.project_id)
        return self._index_operation(request.project_id, protos.CREATE_INDEX, shown)

    def delete_index(self, request: Message) -> Message:
        """Remove a composite index (RPC DeleteIndex)."""
        index = self._find(request.index_id)
        self._indexes.delete(index)
        shown = _shown(index, request.project_id)
        shown.state = Index.DELETING
        return self._index_operation(request.project_id, protos.DELETE_INDEX, shown)

    def get_index(self, request: Message) -> Message:
        """Return a composite index (RPC GetIndex)."""
        return _shown(self._find(request.index_id), request.project_id)

    def list_indexes(self, request: Message) -> Message:
        """Return the composite indexes (RPC ListIndexes)."""
        if request.filter:
            raise DatastoreError(
                Code.UNIMPLEMENTED, "The emulator does not support filters of indexes."
            )
        all_ = {index.identity: index for index in self._indexes.defined()}
        names, token = page(all_, request, _PAGE)
        shown = [_shown(all_[name], request.project_id) for name in names]
        return protos.ListIndexesResponse(indexes=shown, next_page_token=token)

    def _find(self, identity: str) -> CompositeIndex:
        for index in self._indexes.defined():
            if index.identity == identity:
                return index
        raise DatastoreError(Code.NOT_FOUND, f'There is no index "{identity}".')

    def _index_operation(self, project: str, kind: int, index: Message) -> Message:
        metadata = protos.IndexOperationMetadata(index_id=index.index_id)
        metadata.common.operation_type = kind
        return self._operations.start(project, metadata, lambda _: index)


def _parts(entity_filter: Message) -> list[Part]:
    kinds = list(dict.fromkeys(entity_filter.kinds)) or [None]
    namespaces = list(dict.fromkeys(entity_filter.namespace_ids)) or [None]
    return [Part(kind, namespace) for namespace in namespaces for kind in kinds]


def _holds(part: Part, partition: Partition) -> bool:
    return part.namespace is None or part.namespace == partition.namespace


def _composite(index: Message) -> CompositeIndex:
    validation.check_name("kind", index.kind, allow_reserved=True)
    if index.index_id or index.state:
        raise invalid("The id and the state of an index are not for the client to say.")
    if not index.properties:
        raise invalid("An index needs properties.")
    ancestor = index.ancestor == Index.ALL_ANCESTORS
    if index.ancestor == Index.ANCESTOR_MODE_UNSPECIFIED:
        raise invalid("The index does not say whether it has ancestors.")
    orders = []
    for each in index.properties:
        if each.name != KEY:
            validation.check_name("property.name", each.name, allow_reserved=False)
        if each.direction == Index.DIRECTION_UNSPECIFIED:
            raise invalid(f'The property "{each.name}" has no direction.')
        orders.append(Order(each.name, each.direction == Index.DESCENDING))
    if len({order.name for order in orders}) < len(orders):
        raise invalid("An index may have a property once.")
    if len(orders) == 1 and not ancestor and orders[0].name != KEY:
        raise invalid("An index of one property without ancestors is built in.")
    return CompositeIndex(index.kind, ancestor, tuple(orders))


def _shown(index: CompositeIndex, project: str) -> Message:
    shown = Index(project_id=project, index_id=index.identity, kind=index.kind)
    shown.ancestor = Index.ALL_ANCESTORS if index.ancestor else Index.NONE
    for name, descending in index.properties:
        direction = Index.DESCENDING if descending else Index.ASCENDING
        shown.properties.add(name=name, direction=direction)
    shown.state = Index.READY
    return shown
