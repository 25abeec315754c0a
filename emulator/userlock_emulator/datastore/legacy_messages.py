"""Messages that no package defines, described by tables: classes made at run time."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_REPEATED = "repeated "
_Field = descriptor_pb2.FieldDescriptorProto


def classes(package: str, messages: Mapping[str, Mapping[str, tuple[int, str]]]) -> dict[str, Any]:
    """Return the classes of messages.

    Args:
        package: their package.
        messages: by the message's name, its fields: the number and the type, which may be
            "repeated". A type in capitals is a group.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto2"
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated = kind.startswith(_REPEATED)
            kind = kind.removeprefix(_REPEATED)
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind.islower():
                added.type = getattr(_Field, f"TYPE_{kind.upper()}")
                continue
            added.type = _Field.TYPE_GROUP if kind.isupper() else _Field.TYPE_MESSAGE
            title = kind.title().replace("_", "") if kind.isupper() else kind
            added.type_name = f".{package}.{title}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }
