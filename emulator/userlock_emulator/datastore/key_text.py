"""Keys as text, in the form of a GQL key literal: KEY(Parent, 'a', Task, 5)."""

import re
import struct

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.encoding import decode_path
from userlock_emulator.datastore.protos import Key, KeyPb

_ESCAPES = str.maketrans({"\0": "\\0", "\b": "\\b", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def gql_key(key: KeyPb) -> str:
    """Return a key as a GQL literal, without its database, for which GQL has no word."""
    where = key.partition_id
    words = [f"PROJECT({_quoted(where.project_id)})"] if where.project_id else []
    if where.namespace_id:
        words.append(f"NAMESPACE({_quoted(where.namespace_id)})")
    return _literal([*words, path_text(key)])


def path_text(key: KeyPb) -> str:
    """Return the path of a key, as in a GQL literal."""
    words = []
    for element in key.path:
        words.append(gql_name(element.kind))
        named = element.WhichOneof("id_type") == "name"
        words.append(_quoted(element.name) if named else str(element.id))
    return ", ".join(words)


def named(entity: tuple[Partition, bytes]) -> str:
    """Return the key of an entity as a short text for a message."""
    partition, encoded = entity
    try:
        key = decode_path(encoded, Key())
    except (ValueError, struct.error):  # a damaged record must not hide the error it is part of
        return f"the key {encoded!r}"
    if partition.namespace:
        key.partition_id.namespace_id = partition.namespace
    return gql_key(key)


def gql_name(name: str) -> str:
    """Return a name as GQL writes it, in backquotes unless it is a plain word."""
    return name if _PLAIN.fullmatch(name) else f"`{_escaped(name, '`')}`"


def _literal(words: list[str]) -> str:
    return f"KEY({', '.join(words)})"


def _quoted(text: str) -> str:
    quote = "'"
    return f"{quote}{_escaped(text, quote)}{quote}"


def _escaped(text: str, quote: str) -> str:
    text = text.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    return text.translate(_ESCAPES)
