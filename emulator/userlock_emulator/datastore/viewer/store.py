"""Kinds and entities, as documents. Whatever a page shows was read in one short view.

In memory a read keeps everybody else waiting. So a page reads a bounded number of bytes, and
parses them when the view is closed.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from google.protobuf import json_format

from userlock_emulator.datastore.catalog import KIND_INDEX, Partition
from userlock_emulator.datastore.encoding import encode_key, successor
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.key_text import gql_key
from userlock_emulator.datastore.protos import Entity, KeyPb, timestamp
from userlock_emulator.datastore.rows import EVERYTHING, Reader, Span, StoredEntity
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.viewer import places

PAGE = 50
_KINDS = 200
# Counting costs a step for each entity.
MAX_COUNT = 250_000
# A page of huge entities shows the keys of the others.
_MAX_BYTES = 2 << 20
_NO_VALUE = Span(b"", b"\x00")

Document = dict[str, Any]


class Store:
    """The reader of kinds and entities.

    Args:
        project: the project to begin with.
    """

    def __init__(self, storage: Storage, project: str) -> None:
        self._storage = storage
        self._project = project

    @property
    def project(self) -> str:
        """Return the project to begin with: the given one, unless only others have data."""
        with self._storage.read() as reader:
            projects = {partition.project for partition in reader.catalog.partitions()}
        if not projects or self._project in projects:
            return self._project
        return min(projects)

    def kinds(self, fields: places.Fields) -> Document:
        """Return the kinds of all partitions, or of those that the fields name."""
        wanted = {name: fields[name] for name in Partition._fields if name in fields}
        start = _number(fields.get("start", "0"))
        with self._storage.read() as reader:
            scopes = sorted(_kind_scopes(reader, wanted))
        found: list[Document] = []
        further: int | None = None
        for position, (partition, kind, scope) in enumerate(islice(scopes, start, None), start):
            if len(found) == _KINDS:
                further = position
                break
            count = self._count(scope)
            if count:
                found.append(
                    {**partition._asdict(), "kind": kind, "count": min(count, MAX_COUNT)}
                    | ({"more": True} if count > MAX_COUNT else {})
                )
        return {"kinds": found, "start": further}

    def _count(self, scope: int) -> int:
        # One view for each kind: others may come in between.
        with self._storage.read() as reader:
            return reader.count_entries(scope, _NO_VALUE, EVERYTHING, (), MAX_COUNT + 1)

    def entities(self, partition: Partition, kind: str, cursor: str) -> Document:
        """Return a page of the entities of a kind, in the order of their keys."""
        try:
            low = places.from_word(cursor)
        except ValueError:
            raise invalid("This is not the cursor of a page.") from None
        number, keys, stored = None, list[bytes](), list[StoredEntity | None]()
        with self._storage.read() as reader:
            number = reader.catalog.find_partition(partition)
            scope = None if number is None else reader.catalog.find_scope(number, kind, KIND_INDEX)
            if number is not None and scope is not None:
                rows = reader.scan_index(scope, _NO_VALUE, Span(low))
                keys = [key for _, key in islice(rows, PAGE + 1)]
                stored = _load(reader, number, keys[:PAGE])
        return {
            **partition._asdict(),
            "kind": kind,
            "entities": _described(partition, keys, stored),
            "cursor": places.to_word(successor(keys[PAGE - 1])) if len(keys) > PAGE else None,
        }

    def load(self, keys: list[KeyPb]) -> list[Document]:
        """Return the entities of some keys of one partition."""
        if not keys:
            return []
        partition = places.partition_of_key(keys[0])
        encoded = [encode_key(key) for key in keys]
        with self._storage.read() as reader:
            number = reader.catalog.find_partition(partition)
            stored = [] if number is None else _load(reader, number, encoded)
        return _described(partition, encoded, stored)

    def entity(self, key: KeyPb) -> Document:
        """Return all about one entity."""
        partition, encoded = places.partition_of_key(key), encode_key(key)
        with self._storage.read() as reader:
            number = reader.catalog.find_partition(partition)
            stored = None if number is None else reader.get(number, encoded)
        return {
            "key": places.rest(key),
            "gql": gql_key(key),
            "urlsafe": places.legacy_urlsafe(key),
            "found": stored is not None,
            **({} if stored is None else _content(stored)),
        }


def _kind_scopes(reader: Reader, wanted: dict[str, str]) -> Iterator[tuple[Partition, str, int]]:
    for partition, kind, scope in reader.catalog.kinds():
        if all(getattr(partition, name) == value for name, value in wanted.items()):
            yield partition, kind, scope


def _load(reader: Reader, number: int, keys: list[bytes]) -> list[StoredEntity | None]:
    """Return the entities of keys, up to a number of bytes."""
    found: list[StoredEntity | None] = []
    size = 0
    for key in keys:
        if size > _MAX_BYTES:
            break
        stored = reader.get(number, key)
        size += 0 if stored is None else len(stored.data)
        found.append(stored)
    return found


def _described(
    partition: Partition, keys: list[bytes], stored: list[StoredEntity | None]
) -> list[Document]:
    described: list[Document] = []
    for place, encoded in enumerate(keys[:PAGE]):
        try:
            document: Document = {"key": places.rest(places.decoded(partition, encoded))}
        except Exception as error:
            described.append({"key": None, "error": f"The key {encoded!r} is damaged: {error}"})
            continue
        found = stored[place] if place < len(stored) else None
        if found is not None:
            document |= _content(found)
        elif place < len(stored):
            document["error"] = "The entity is missing."
        else:
            document["error"] = "Not read, as the entities before it are large. Open it alone."
        described.append(document)
    return described


def _content(stored: StoredEntity) -> Document:
    """Return the content of an entity, or the reason why it has none that can be shown."""
    document: Document = {"version": str(stored.version), "bytes": len(stored.data)}
    try:
        document["createTime"] = timestamp(stored.created).ToJsonString()
        document["updateTime"] = timestamp(stored.version).ToJsonString()
        entity = Entity.FromString(stored.data)
        properties = json_format.MessageToDict(entity).get("properties", {})
        document["properties"] = dict(sorted(properties.items()))
    except Exception as error:  # one damaged record must not take the others along
        document["error"] = f"The entity cannot be read: {error}"
    return document


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise invalid(f"This is not a number: {text[:20]!r}.")
    return int(text)
