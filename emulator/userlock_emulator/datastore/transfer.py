"""Export and import of all entities as lines of JSON.

A line is an entity message in the proto3 mapping, with its whole key. History, write times and
versions are not included.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from google.protobuf import json_format

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.encoding import decode_path, successor
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.protos import CommitRequest, Entity, EntityPb, Message
from userlock_emulator.datastore.rows import Span, StoredEntity
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.port.rpcs import Run

# While the data is in memory, a read blocks all other requests. A client that does not read its
# export keeps one chunk.
_ENTITIES_AT_ONCE = 200
_BYTES_AT_ONCE = 1 << 20


class Transfer:
    """The writer and reader of these lines.

    Args:
        commit: the RPC, which checks imported entities like any others.
    """

    def __init__(self, storage: Storage, commit: Run) -> None:
        self._storage = storage
        self._commit = commit

    def lines(self) -> Iterator[bytes]:
        """Yield every entity as of now, in chunks of whole lines.

        The order is project, database, namespace and key.
        """
        for partition, found in stored_entities(self._storage):
            yield b"".join(_line(partition, key, stored.data) for key, stored in found)

    def load(self, lines: bytes) -> int:
        """Store the entities of some lines, in one commit per database, and return their number.

        An entity with the same key is replaced. An incomplete key gets an id.

        Raises:
            DatastoreError: a line is no entity, or one that Datastore would refuse. Entities of
                other databases may have been stored.
        """
        requests: dict[tuple[str, str], Message] = {}
        count = 0
        for number, line in enumerate(lines.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                entity = json_format.Parse(line, Entity())
            except (json_format.ParseError, ValueError, RecursionError) as error:
                raise invalid(f"line {number} is not an entity: {error}") from None
            where = entity.key.partition_id
            if not where.project_id:
                raise invalid(f"line {number}: the key has no partitionId.projectId")
            request = requests.setdefault((where.project_id, where.database_id), CommitRequest())
            request.mutations.add().upsert.CopyFrom(entity)
            count += 1
        for (project, database), request in requests.items():
            request.project_id, request.database_id = project, database
            request.mode = CommitRequest.NON_TRANSACTIONAL
            self._commit(request)
        return count


def stored_entities(
    storage: Storage,
) -> Iterator[tuple[Partition, list[tuple[bytes, StoredEntity]]]]:
    """Yield every entity as of now, in chunks, by project, database, namespace and key."""
    with storage.read() as reader:
        time = reader.time
        partitions = sorted(reader.catalog.partitions().items())
    for partition, number in partitions:
        low = b""
        while True:
            with storage.read(time) as reader:
                keys = islice(reader.scan_keys(number, Span(low)), _ENTITIES_AT_ONCE)
                found = list(_some((key, reader.get(number, key)) for key in keys))
            if not found:
                break
            yield partition, [(key, stored) for key, stored in found if stored is not None]
            low = successor(found[-1][0])


def whole(partition: Partition, key: bytes, data: bytes) -> EntityPb:
    """Return a stored entity with its whole key."""
    entity = Entity.FromString(data)
    decode_path(key, entity.key)
    entity.key.partition_id.project_id = partition.project
    entity.key.partition_id.database_id = partition.database
    entity.key.partition_id.namespace_id = partition.namespace
    return entity


def _some(
    found: Iterable[tuple[bytes, StoredEntity | None]],
) -> Iterator[tuple[bytes, StoredEntity | None]]:
    """Yield the entities of a chunk: at least one, and none after `_BYTES_AT_ONCE`."""
    size = 0
    for key, stored in found:
        yield key, stored
        size += 0 if stored is None else len(stored.data)
        if size >= _BYTES_AT_ONCE:
            return


def _line(partition: Partition, key: bytes, data: bytes) -> bytes:
    entity = whole(partition, key, data)
    text = json_format.MessageToJson(entity, indent=None, sort_keys=True, ensure_ascii=False)
    return text.encode() + b"\n"
