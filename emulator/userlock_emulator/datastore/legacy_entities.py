"""App Engine's EntityProto, the form of the entities in exports, to and from Datastore v1's.

The messages are defined here by their fields in App Engine's public SDK
(`google/appengine/datastore/entity_bytes_pb2.py`); those that no export of today has are left out.
"""

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from userlock_emulator.datastore import legacy_messages
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.protos import (
    Entity,
    EntityPb,
    KeyPb,
    Message,
    Value,
    ValuePb,
    microseconds,
    timestamp,
)

_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Path": {"element": (1, "repeated PATH_ELEMENT")},
    "PathElement": {"type": (2, "string"), "id": (3, "int64"), "name": (4, "string")},
    "Reference": {
        "app": (13, "string"),
        "path": (14, "Path"),
        "name_space": (20, "string"),
        "database_id": (23, "string"),
    },
    "PointValue": {"x": (6, "double"), "y": (7, "double")},
    "UserValue": {"email": (9, "string"), "auth_domain": (10, "string")},
    "ReferenceElement": {"type": (15, "string"), "id": (16, "int64"), "name": (17, "string")},
    "ReferenceValue": {
        "app": (13, "string"),
        "element": (14, "repeated REFERENCE_ELEMENT"),
        "name_space": (20, "string"),
        "database_id": (23, "string"),
    },
    "PropertyValue": {
        "int64": (1, "int64"),
        "boolean": (2, "bool"),
        "string": (3, "bytes"),
        "double": (4, "double"),
        "point": (5, "POINT_VALUE"),
        "user": (8, "USER_VALUE"),
        "reference": (12, "REFERENCE_VALUE"),
    },
    "Property": {
        "meaning": (1, "int32"),
        "name": (3, "string"),
        "multiple": (4, "bool"),
        "value": (5, "PropertyValue"),
    },
    "EntityProto": {
        "key": (13, "Reference"),
        "property": (14, "repeated Property"),
        "raw_property": (15, "repeated Property"),
        "entity_group": (16, "Path"),
    },
}

# Meanings of properties (Property.Meaning in the SDK).
_WHEN, _POINT, _BLOB, _TEXT, _BYTES, _ENTITY, _EMPTY_LIST = 7, 9, 14, 15, 16, 19, 24
_BLOBS = (_BLOB, _BYTES)


_EntityProto = legacy_messages.classes("userlock_emulator.legacy", _MESSAGES)["EntityProto"]


# --- to EntityProto -------------------------------------------------------------------------------


def encode(entity: EntityPb) -> bytes:
    """Return an entity with a complete key as an EntityProto."""
    encoded: bytes = _encode(entity).SerializeToString()
    return encoded


def _encode(entity: EntityPb) -> Message:
    proto = _EntityProto()
    _encode_key(entity.key, proto.key, proto.key.path.element)
    proto.key.path.SetInParent()
    proto.key.app = entity.key.partition_id.project_id  # required, also where it is empty
    proto.entity_group.SetInParent()
    proto.entity_group.element.extend(proto.key.path.element[:1])
    for name, value in entity.properties.items():
        if value.WhichOneof("value_type") != "array_value":
            _encode_property(proto, name, value, multiple=False, raw=value.exclude_from_indexes)
            continue
        raw = value.exclude_from_indexes
        if not value.array_value.values:
            added = (proto.raw_property if raw else proto.property).add(name=name, multiple=False)
            added.meaning = _EMPTY_LIST
            added.value.SetInParent()
        for element in value.array_value.values:
            _encode_property(
                proto, name, element, multiple=True, raw=raw or element.exclude_from_indexes
            )
    return proto


def _encode_property(
    proto: Message, name: str, value: ValuePb, *, multiple: bool, raw: bool
) -> None:
    added = (proto.raw_property if raw else proto.property).add(name=name, multiple=multiple)
    added.value.SetInParent()
    target = added.value
    which = value.WhichOneof("value_type")
    if which == "boolean_value":
        target.boolean = value.boolean_value
    elif which == "integer_value":
        target.int64 = value.integer_value
    elif which == "double_value":
        target.double = value.double_value
    elif which == "timestamp_value":
        added.meaning, target.int64 = _WHEN, microseconds(value.timestamp_value)
    elif which == "string_value":
        target.string = value.string_value.encode()
        if raw:
            added.meaning = _TEXT
    elif which == "blob_value":
        added.meaning, target.string = _BLOB if raw else _BYTES, value.blob_value
    elif which == "geo_point_value":
        point = value.geo_point_value
        added.meaning, target.point.x, target.point.y = _POINT, point.latitude, point.longitude
    elif which == "key_value":
        target.reference.app = value.key_value.partition_id.project_id
        _encode_key(value.key_value, target.reference, target.reference.element)
    elif which == "entity_value":
        added.meaning, target.string = _ENTITY, encode(value.entity_value)


def _encode_key(key: KeyPb, reference: Message, elements: Message) -> None:
    reference.app = key.partition_id.project_id
    if key.partition_id.namespace_id:
        reference.name_space = key.partition_id.namespace_id
    if key.partition_id.database_id:
        reference.database_id = key.partition_id.database_id
    for element in key.path:
        added = elements.add(type=element.kind)
        if element.WhichOneof("id_type") == "name":
            added.name = element.name
        elif element.WhichOneof("id_type") == "id":
            added.id = element.id


# --- from EntityProto -----------------------------------------------------------------------------


def decode(data: bytes, project: str, database: str) -> EntityPb:
    """Return the entity of an EntityProto, with its keys in another project and database.

    Raises:
        DatastoreError: INVALID_ARGUMENT: it is none, or has a value that Datastore v1 does not.
    """
    try:
        proto = _EntityProto.FromString(data)
    except DecodeError as error:
        raise invalid(f"a record is not an entity: {error}") from None
    entity = _decode(proto, project, database)
    if not entity.key.path:
        raise invalid("a record is not an entity: it has no key")
    return entity


def _decode(proto: Message, project: str, database: str) -> EntityPb:
    entity = Entity()
    if proto.key.path.element:
        _decode_key(proto.key, proto.key.path.element, entity.key, project, database)
    for raw, properties in ((False, proto.property), (True, proto.raw_property)):
        for each in properties:
            value = entity.properties[each.name]
            if each.meaning == _EMPTY_LIST:
                value.array_value.SetInParent()
            elif each.multiple:
                element = value.array_value.values.add()
                element.CopyFrom(_decode_value(each, raw, project, database))
            else:
                value.CopyFrom(_decode_value(each, raw, project, database))
    return entity


def _decode_value(each: Message, raw: bool, project: str, database: str) -> ValuePb:
    value, source = Value(), each.value
    value.exclude_from_indexes = raw
    if source.HasField("int64"):
        if each.meaning == _WHEN:
            value.timestamp_value.CopyFrom(timestamp(source.int64))
        else:
            value.integer_value = source.int64
    elif source.HasField("boolean"):
        value.boolean_value = source.boolean
    elif source.HasField("double"):
        value.double_value = source.double
    elif source.HasField("point"):
        value.geo_point_value.latitude = source.point.x
        value.geo_point_value.longitude = source.point.y
    elif source.HasField("reference"):
        reference = source.reference
        _decode_key(reference, reference.element, value.key_value, project, database)
    elif source.HasField("user"):
        # As Datastore v1 shows App Engine's users: an entity with these properties.
        for name in ("email", "auth_domain"):
            value.entity_value.properties[name].string_value = getattr(source.user, name)
    elif source.HasField("string"):
        _decode_string(each, value, project, database)
    else:
        value.null_value = 0
    return value


def _decode_string(each: Message, value: ValuePb, project: str, database: str) -> None:
    data = each.value.string
    if each.meaning == _ENTITY:
        try:
            inner = _EntityProto.FromString(data)
        except DecodeError as error:
            raise invalid(f'the entity in property "{each.name}": {error}') from None
        value.entity_value.CopyFrom(_decode(inner, project, database))
    elif each.meaning in _BLOBS:
        value.blob_value = data
    else:
        try:
            value.string_value = data.decode()
        except UnicodeDecodeError as error:
            raise invalid(f'the text in property "{each.name}" is not UTF-8: {error}') from None


def _decode_key(
    reference: Message, elements: Iterable[Message], key: KeyPb, project: str, database: str
) -> None:
    key.partition_id.project_id = project
    key.partition_id.database_id = database
    key.partition_id.namespace_id = reference.name_space
    for element in elements:
        added = key.path.add(kind=element.type)
        if element.HasField("name"):
            added.name = element.name
        elif element.HasField("id"):
            added.id = element.id
