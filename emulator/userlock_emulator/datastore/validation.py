"""The documented limits on keys, names and values.

Sources: "Limits" (datastore concepts) and the comments of entity.proto. Each
check raises `DatastoreError` INVALID_ARGUMENT.
"""

import functools
import re

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.protos import EntityPb, KeyPb, Message, ValuePb

MAX_KEY_BYTES = 6 * 1024
MAX_PATH_ELEMENTS = 100
MAX_NAME_BYTES = 1500
MAX_ENTITY_BYTES = 1_048_572
MAX_INDEXED_BYTES = 1500
MAX_UNINDEXED_BYTES = 1_048_487
MAX_NESTING = 20
MAX_INDEX_ENTRIES = 20_000
MAX_LOOKUP_KEYS = 1000
MAX_COMMIT_BYTES = 10 * 1024 * 1024

# "Timestamp": from the beginning of the year 1 to the end of the year 9999.
_SECONDS = range(-62_135_596_800, 253_402_300_800)
_NANOS = range(1_000_000_000)

_RESERVED = re.compile(r"__.*__", re.DOTALL)
_DIMENSION = re.compile(r"[A-Za-z\d.\-_]{1,100}")
# Project ids of domain-scoped projects contain a colon ("example.com:project"),
# and ndb's legacy ids a tilde ("s~project").
_PROJECT = re.compile(r"[A-Za-z\d.\-_:~]{1,100}")


def check_request_database(project: str, database: str) -> None:
    """Check the project and the database named in a request."""
    if not _PROJECT.fullmatch(project):
        raise invalid(f"The project id {project!r} is missing or malformed.")
    if database == "(default)":
        raise invalid(
            "'(default)' is not allowed; please use empty string '' to refer the default database."
        )
    if database and not _DIMENSION.fullmatch(database):
        raise invalid(f"The database id {database!r} is malformed.")


def check_partition(partition: Message, project: str, database: str) -> Partition:
    """Check the partition of a request on `project` and `database`, and return it."""
    if partition.project_id not in ("", project):
        raise invalid(f"mismatched databases within request: {project} vs. {partition.project_id}")
    if partition.database_id not in ("", database):
        raise invalid(
            f"mismatched databases within request: {project}/{database}"
            f" vs. {project}/{partition.database_id}"
        )
    if partition.namespace_id and not _DIMENSION.fullmatch(partition.namespace_id):
        raise invalid(f"The namespace {partition.namespace_id!r} is malformed.")
    return _partition(project, database, partition.namespace_id)


# One for each namespace in use, which is compared with itself most of the time.
_partition = functools.lru_cache(1024)(Partition)


def check_key(
    key: KeyPb,
    project: str,
    database: str,
    *,
    allow_incomplete: bool = False,
    allow_reserved: bool = True,
) -> Partition:
    """Check a key in a request, and return its partition.

    Args:
        allow_incomplete: the last path element may lack an identifier.
        allow_reserved: kinds and names of the form `__…__` may occur (reads only).
    """
    path = key.path
    left = len(path)
    if not left:
        raise invalid("A key path must not be empty.")
    if left > MAX_PATH_ELEMENTS:
        raise invalid(f"A key path may have at most {MAX_PATH_ELEMENTS} elements.")
    for element in path:
        left -= 1
        _check_word("kind", element.kind, allow_reserved=allow_reserved)
        which = element.WhichOneof("id_type")
        if which == "name":
            check_name("name", element.name, allow_reserved=allow_reserved)
        elif which == "id":
            if element.id == 0:
                raise invalid("The id allocated for a key path element must not be 0.")
        elif left or not allow_incomplete:
            raise invalid("Key path is incomplete: only the last element may lack an identifier.")
    partition = check_partition(key.partition_id, project, database)
    if key.ByteSize() > MAX_KEY_BYTES:
        raise invalid(f"A key may have at most {MAX_KEY_BYTES} bytes.")
    return partition


def is_incomplete(key: KeyPb) -> bool:
    """Return whether the last path element lacks an identifier."""
    return key.path[-1].WhichOneof("id_type") is None


def check_name(what: str, name: str, *, allow_reserved: bool) -> None:
    """Check a kind, a name or a property name; `what` says which."""
    if not name:
        raise invalid(f"The {what} is the empty string.")
    # A character takes at most four bytes in UTF-8.
    if len(name) * 4 > MAX_NAME_BYTES and len(name.encode()) > MAX_NAME_BYTES:
        raise invalid(f"The {what} is longer than {MAX_NAME_BYTES} bytes.")
    if not allow_reserved and is_reserved(name):
        raise invalid(f'The {what} "{name}" is reserved.')


# Kinds and names of properties are few, and come with each entity.
_check_word = functools.lru_cache(1024)(check_name)


def is_reserved(name: str) -> bool:
    """Return whether a kind, name or property has the form `__…__`."""
    return name.startswith("__") and _RESERVED.fullmatch(name) is not None


def check_query_kind(kind: str) -> None:
    """Check the kind that a query names."""
    check_name("kind", kind, allow_reserved=True)


def complete_key(key: KeyPb, partition: Partition) -> None:
    """Complete a key without a project with the request's partition, in place.

    The service completes all keys, also keys in values, except empty ones.
    """
    where = key.partition_id
    if where.project_id or not (key.path or where.database_id or where.namespace_id):
        return
    where.project_id = partition.project
    where.database_id = where.database_id or partition.database


def check_entity(entity: EntityPb, partition: Partition) -> None:
    """Check the properties of an entity that is written in this partition.

    Values that the service stores in another form are changed in place: see `check_value`.
    """
    if entity.ByteSize() > MAX_ENTITY_BYTES:
        raise invalid(
            f"The entity is larger than {MAX_ENTITY_BYTES} bytes ({entity.ByteSize()} bytes)."
        )
    _check_properties(entity, partition, indexed=True, depth=0)


def _check_properties(entity: EntityPb, partition: Partition, *, indexed: bool, depth: int) -> None:
    properties = entity.properties
    for name in properties:  # `items()` of a message takes twice as long
        value = properties[name]
        _check_word("property name", name, allow_reserved=False)
        if value.WhichOneof("value_type") not in _ALWAYS_VALID:
            check_value(name, value, partition, indexed=indexed, depth=depth)


_ALWAYS_VALID = frozenset({"null_value", "boolean_value", "integer_value", "double_value"})


def check_value(
    name: str, value: ValuePb, partition: Partition, *, indexed: bool, depth: int = 0
) -> None:
    """Check the value of a property, or the operand of a filter.

    As the service stores them, dates are rounded down to microseconds and keys completed, in place.
    """
    indexed = indexed and not value.exclude_from_indexes
    which = value.WhichOneof("value_type")
    if which == "string_value":
        _check_length(name, value.string_value, indexed=indexed)
    elif which == "blob_value":
        _check_length(name, value.blob_value, indexed=indexed)
    elif which == "timestamp_value":
        _check_timestamp(name, value.timestamp_value)
    elif which == "key_value":
        complete_key(value.key_value, partition)
    elif which == "array_value":
        for element in value.array_value.values:
            if element.WhichOneof("value_type") == "array_value":
                raise invalid(f'The array in property "{name}" contains another array.')
            check_value(name, element, partition, indexed=indexed, depth=depth)
    elif which == "entity_value":
        if depth >= MAX_NESTING:
            raise invalid(f"Values are nested more than {MAX_NESTING} levels deep.")
        if value.entity_value.HasField("key"):
            complete_key(value.entity_value.key, partition)
        _check_properties(value.entity_value, partition, indexed=indexed, depth=depth + 1)
    elif which == "geo_point_value":
        point = value.geo_point_value
        if not (-90 <= point.latitude <= 90 and -180 <= point.longitude <= 180):
            raise invalid(f'The geo point in property "{name}" is out of range.')
    elif which is None:
        raise invalid(f'The value of property "{name}" has no type.')


def _check_timestamp(name: str, timestamp: Message) -> None:
    if timestamp.seconds not in _SECONDS or timestamp.nanos not in _NANOS:
        raise invalid(f'The timestamp in property "{name}" is out of range.')
    excess = timestamp.nanos % 1000
    if excess:
        timestamp.nanos -= excess


def _check_length(name: str, text: str | bytes, *, indexed: bool) -> None:
    limit = MAX_INDEXED_BYTES if indexed else MAX_UNINDEXED_BYTES
    if len(text) * 4 <= limit:
        return
    size = len(text.encode() if isinstance(text, str) else text)
    if size > limit:
        raise invalid(f'The value of property "{name}" is longer than {limit} bytes.')
