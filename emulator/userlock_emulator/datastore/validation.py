"""The limits on keys, names and values.

Sources: "Limits" (datastore concepts), the comments of entity.proto, and the validator of App
Engine's SDK (`google.appengine.datastore.cloud_datastore_validator`). The texts are the service's
where they are known: tests of clients match them. Each check raises `DatastoreError`
INVALID_ARGUMENT. `tools/compare/boundaries.py` has the rules as a table.
"""

import functools
import math
import re

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.errors import DatastoreError, invalid
from userlock_emulator.datastore.protos import (
    EntityPb,
    KeyPb,
    Message,
    ValuePb,
    microseconds,
)

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

_RESERVED = re.compile(r"__.+__", re.DOTALL)
_DIMENSION = re.compile(r"[A-Za-z\d.\-_]{1,100}")
# Project ids of domain-scoped projects contain a colon ("example.com:project"),
# and ndb's legacy ids a tilde ("s~project").
_PROJECT = re.compile(r"[A-Za-z\d.\-_:~]{1,100}")


def check_request_database(project: str, database: str) -> None:
    """Check the project and the database named in a request."""
    _check_project(project)
    if database == "(default)":
        raise invalid(
            "'(default)' is not allowed; please use empty string '' to refer the default database."
        )
    if database and not _DIMENSION.fullmatch(database):
        raise invalid(f'"{database}" is an invalid database id.')


def _check_project(project: str) -> None:
    if not project:
        raise invalid("The project id is the empty string.")
    if not _PROJECT.fullmatch(project):
        raise invalid(f'"{project}" is an invalid project id.')


def check_partition(
    partition: Message, project: str, database: str, *, allow_reserved: bool = True
) -> Partition:
    """Check the partition of a request on `project` and `database`, and return it."""
    if partition.project_id not in ("", project):
        raise invalid(f"mismatched databases within request: {project} vs. {partition.project_id}")
    if partition.database_id not in ("", database):
        raise invalid(
            f"mismatched databases within request: {project}/{database}"
            f" vs. {project}/{partition.database_id}"
        )
    _check_namespace(partition.namespace_id, allow_reserved=allow_reserved)
    return _partition(project, database, partition.namespace_id)


def _check_namespace(namespace: str, *, allow_reserved: bool) -> None:
    if not namespace:
        return
    if not _DIMENSION.fullmatch(namespace):
        raise invalid(f'Illegal string "{namespace}" in namespace id.')
    if not allow_reserved and is_reserved(namespace):
        raise invalid(f'The namespace id "{namespace}" is reserved.')


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
        allow_reserved: names, kinds and namespaces of the form `__…__` may occur (reads only).
    """
    partition = check_partition(key.partition_id, project, database, allow_reserved=allow_reserved)
    _check_path(key, allow_incomplete=allow_incomplete, allow_reserved=allow_reserved)
    return partition


def _check_path(key: KeyPb, *, allow_incomplete: bool, allow_reserved: bool) -> None:
    path = key.path
    left = len(path)
    if not left:
        raise invalid("Key path is empty.")
    if left > MAX_PATH_ELEMENTS:
        raise invalid(f"Key path is too long. Cannot exceed {MAX_PATH_ELEMENTS} elements.")
    for element in path:
        left -= 1
        _check_word("kind", element.kind, allow_reserved=allow_reserved)
        which = element.WhichOneof("id_type")
        if which == "name":
            check_name("key path element name", element.name, allow_reserved=allow_reserved)
        elif which == "id":
            if element.id == 0:
                raise invalid("Key path id is invalid. Must not be zero.")
        elif left or not allow_incomplete:
            raise invalid(f"Key path element must not be incomplete: {key_text(key)}")
    if key.ByteSize() > MAX_KEY_BYTES:
        raise invalid(f"A key may have at most {MAX_KEY_BYTES} bytes.")


def key_text(key: KeyPb) -> str:
    """Return a key's path as the service writes it in errors."""
    return f"[{', '.join(f'{each.kind}: {each.name or each.id or str()}' for each in key.path)}]"


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
    """Return whether a kind, name, namespace or property has the form `__…__`."""
    return name.startswith("__") and _RESERVED.fullmatch(name) is not None


def complete_key(key: KeyPb, partition: Partition) -> None:
    """Complete a key without a project with the request's partition, in place, as the service
    completes all keys.
    """
    where = key.partition_id
    if where.project_id:
        return
    where.project_id = partition.project
    where.database_id = where.database_id or partition.database


def _check_key_value(key: KeyPb, partition: Partition, *, allow_incomplete: bool = False) -> None:
    """Check a key in a value, which may be of any project and any namespace, and complete it."""
    where = key.partition_id
    if where.project_id:
        _check_project(where.project_id)
    _check_namespace(where.namespace_id, allow_reserved=True)
    _check_path(key, allow_incomplete=allow_incomplete, allow_reserved=True)
    complete_key(key, partition)


def check_entity(entity: EntityPb, partition: Partition) -> None:
    """Check the properties of an entity that is written in this partition.

    Values that the service stores in another form are changed in place: see `_check_value`.
    """
    if entity.ByteSize() > MAX_ENTITY_BYTES:
        raise invalid(
            f"The entity is larger than {MAX_ENTITY_BYTES} bytes ({entity.ByteSize()} bytes)."
        )
    properties = entity.properties
    for name in properties:  # `items()` of a message takes twice as long
        value = properties[name]
        _check_word("property.name", name, allow_reserved=False)
        if value.meaning or value.WhichOneof("value_type") not in _ALWAYS_VALID:
            _check_value(name, value, partition, name)


_ALWAYS_VALID = frozenset({"null_value", "boolean_value", "integer_value", "double_value"})


def check_operand(name: str, value: ValuePb, partition: Partition) -> None:
    """Check the operand of a filter, or an element of the array that is one."""
    if value.exclude_from_indexes:
        raise invalid("a filter value must be indexed")
    _check_value(name, value, partition, name, stored=False)


def check_element(name: str, value: ValuePb, partition: Partition) -> None:
    """Check an element of the array in property `name`."""
    _check_not_nested(value)
    _check_value(name, value, partition, name)


def _check_not_nested(element: ValuePb) -> None:
    if element.WhichOneof("value_type") == "array_value":
        raise invalid("list_value cannot contain a Value containing another list_value.")


def _check_value(
    name: str,
    value: ValuePb,
    partition: Partition,
    path: str,
    *,
    depth: int = 0,
    stored: bool = True,
) -> None:
    """Check the value of a property, or the operand of a filter.

    As the service stores them, dates are rounded down to microseconds and keys completed, in place.

    Args:
        path: the names of the properties from the outermost one, with dots.
        depth: the number of entities and arrays around the value.
        stored: False for an operand.
    """
    which = value.WhichOneof("value_type")
    if which is None:
        raise invalid(f'The value "{name}" does not contain a value.')
    if value.meaning:
        _check_meaning(name, which, value, stored=stored)
    if which == "string_value":
        if not stored or value.meaning != _URL:
            _check_length(name, value.string_value, indexed=not value.exclude_from_indexes)
    elif which == "blob_value":
        _check_length(name, value.blob_value, indexed=not value.exclude_from_indexes)
    elif which == "timestamp_value":
        _check_timestamp(value.timestamp_value)
    elif which == "key_value":
        _check_key_value(value.key_value, partition)
    elif which == "array_value":
        if value.exclude_from_indexes and value.meaning != _VECTOR:
            raise invalid("Exclude from indexes cannot be set on a list value")
        _check_depth(depth + 1)
        for element in value.array_value.values:
            _check_not_nested(element)
            _check_value(name, element, partition, path, depth=depth + 1, stored=stored)
    elif which == "entity_value":
        _check_embedded(value.entity_value, partition, path, depth + 1)
    elif which == "geo_point_value":
        _check_coordinate("latitude", value.geo_point_value.latitude, 90.0)
        _check_coordinate("longitude", value.geo_point_value.longitude, 180.0)


def _check_embedded(entity: EntityPb, partition: Partition, path: str, depth: int) -> None:
    _check_depth(depth)
    if entity.HasField("key"):
        _check_key_value(entity.key, partition, allow_incomplete=True)
    for name in entity.properties:
        value = entity.properties[name]
        _check_word("property.name", name, allow_reserved=False)
        inner = f"{path}.{name}"
        check_name("flattened property.name", inner, allow_reserved=True)
        _check_value(name, value, partition, inner, depth=depth)


def _check_depth(depth: int) -> None:
    if depth > MAX_NESTING:
        raise invalid(f"At most {MAX_NESTING} nested array/entity values are supported.")


# What a value means to older APIs: the numbers and rules of App Engine's SDK.
_URL, _WHEN, _PERCENT, _TEXT, _FROM_INDEX, _USER, _ZLIB, _VECTOR = 2, 7, 13, 15, 18, 20, 22, 31
_TYPES = {
    **dict.fromkeys((1, _URL, 3, 4, 5, 6, 8, 10, 11, 12, _TEXT, 17), "string_value"),
    **dict.fromkeys((16, _ZLIB), "blob_value"),
    **dict.fromkeys((_WHEN, _PERCENT), "integer_value"),
    _USER: "entity_value",
    23: "geo_point_value",
    _VECTOR: "array_value",
}
_MAX_URL_BYTES = 2083
_MAX_DIMENSIONS = 2048
_USER_MUST_HAVE = ("email", "auth_domain")
_USER_MAY_HAVE = (*_USER_MUST_HAVE, "user_id", "federated_identity", "federated_provider")


def _check_meaning(name: str, which: str, value: ValuePb, *, stored: bool) -> None:
    meaning = value.meaning
    if which == "array_value" and meaning != _VECTOR:
        raise invalid("A Value containing a list_value cannot specify a meaning.")
    if meaning == _FROM_INDEX:
        if which in ("timestamp_value", "entity_value"):
            raise _mismatch(name, meaning, which)
        if stored:
            raise invalid("Projection property cannot be used.")
        return
    wanted = _TYPES.get(meaning)
    if wanted is None:
        raise invalid(f"Unknown value meaning {meaning}.")
    if which != wanted:
        raise _mismatch(name, meaning, wanted)
    if meaning in (_TEXT, _ZLIB) and not value.exclude_from_indexes:
        raise invalid(f"Indexed value has meaning {meaning}.")
    if meaning == _URL and len(value.string_value.encode()) > _MAX_URL_BYTES:
        raise invalid(f"The Url value is longer than {_MAX_URL_BYTES} bytes.")
    if meaning == _WHEN and value.integer_value // 1_000_000 in _SECONDS:
        raise invalid(
            "A timestamp in range [0001-01-01T00:00:00Z, 9999-12-31T23:59:59.999999Z] must be"
            " stored as a timestamp value."
        )
    if meaning == _PERCENT and not 0 <= value.integer_value <= 100:
        raise invalid("Percent value outside permitted range [0, 100].")
    if meaning == _USER:
        _check_user(value.entity_value)
    if meaning == _VECTOR:
        _check_vector(value)


def _mismatch(name: str, meaning: int, which: str) -> DatastoreError:
    return invalid(f'Value "{name}" has a meaning {meaning} which does not match {which} field.')


def _check_user(entity: EntityPb) -> None:
    if entity.HasField("key"):
        raise invalid("The user entity has a key.")
    for name, value in entity.properties.items():
        what = f'The user entity property "{name}"'
        if name not in _USER_MAY_HAVE:
            raise invalid(f"{what} is not allowed.")
        if value.WhichOneof("value_type") != "string_value":
            raise invalid(f"{what} is the wrong type.")
        if value.meaning:
            raise invalid(f"{what} has a meaning.")
        if not value.exclude_from_indexes:
            raise invalid(f"{what} is indexed.")
    for name in _USER_MUST_HAVE:
        if name not in entity.properties:
            raise invalid(f'The user entity is missing required property "{name}".')


def _check_vector(value: ValuePb) -> None:
    elements = value.array_value.values
    if not value.exclude_from_indexes:
        raise invalid("Vector's must be excluded from indexes.")
    if not elements:
        raise invalid("Cannot have a zero length vector.")
    if len(elements) > _MAX_DIMENSIONS:
        raise invalid(f"Vectors must be at most {_MAX_DIMENSIONS} dimensions.")
    if any(element.WhichOneof("value_type") != "double_value" for element in elements):
        raise invalid("Vector must only contain values of type 'double'.")
    if any(math.isnan(element.double_value) for element in elements):
        raise invalid("Vector cannot contain NaN values.")


def _check_timestamp(timestamp: Message) -> None:
    if timestamp.nanos not in _NANOS:
        raise invalid("Timestamp nanos exceeds limit for field")
    if timestamp.seconds not in _SECONDS:
        raise invalid("Timestamp seconds exceeds limit for field")
    excess = timestamp.nanos % 1000
    if excess:
        timestamp.nanos -= excess


def exact_microseconds(timestamp: Message) -> int:
    """Return the microseconds of a time that a request may only name exactly."""
    if timestamp.nanos % 1000:
        raise invalid("timestamp cannot have more than microseconds precision")
    return microseconds(timestamp)


def _check_coordinate(name: str, degrees: float, most: float) -> None:
    if math.isnan(degrees):
        raise invalid(f"Geo point {name} is not a number.")
    if not -most <= degrees <= most:
        raise invalid(f"Geo point {name} outside permitted range -{most} to {most}.")


def _check_length(name: str, text: str | bytes, *, indexed: bool) -> None:
    limit = MAX_INDEXED_BYTES if indexed else MAX_UNINDEXED_BYTES
    if len(text) * 4 <= limit:
        return
    size = len(text.encode() if isinstance(text, str) else text)
    if size > limit:
        raise invalid(f'The value of property "{name}" is longer than {limit} bytes.')
