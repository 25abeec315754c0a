"""The addresses of the pages, and keys and partitions in them."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

from google.cloud.datastore import Key as _ClientKey
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from userlock_emulator.datastore import gql, validation
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.encoding import decode_path
from userlock_emulator.datastore.errors import DatastoreError, invalid
from userlock_emulator.datastore.protos import GqlQuery, Key, KeyPb
from userlock_emulator.datastore.viewer.paths import PREFIX

_MAX_FIELDS = 60
# The client package has no types.
_OfClients = cast(Any, _ClientKey)

Fields = Mapping[str, str]


def fields_of(encoded: str) -> dict[str, str]:
    """Return the fields of a form or of an address. Of several with one name, the last one.

    Raises:
        DatastoreError: INVALID_ARGUMENT: there are too many.
    """
    try:
        return dict(parse_qsl(encoded, keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError as error:
        raise invalid(f"This address or form cannot be read: {error}.") from None


def address(name: str, /, fields: Fields | None = None, **more: str | int | None) -> str:
    """Return the address of a page. Empty fields are left out."""
    given = {**(fields or {}), **more}
    wanted = {field: value for field, value in given.items() if value not in ("", None)}
    return f"{PREFIX}/{name}{'?' if wanted else ''}{urlencode(wanted, errors='replace')}"


def partition_of(fields: Fields, project: str) -> Partition:
    """Return the partition that an address names; the project is known without."""
    return Partition(
        fields.get("project") or project, fields.get("database", ""), fields.get("namespace", "")
    )


def fields_of_partition(partition: Partition) -> dict[str, str]:
    """Return the fields by which an address names a partition."""
    return partition._asdict()


def token(key: KeyPb) -> str:
    """Return a key as one word for an address."""
    return to_word(key.SerializeToString(deterministic=True))


def key_of(word: str) -> KeyPb:
    """Return the complete key of a `token`.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    try:
        key = Key.FromString(from_word(word))
    except (DecodeError, ValueError):
        raise invalid("This is not a key.") from None
    where = key.partition_id
    validation.check_key(key, where.project_id, where.database_id)
    return key


def partition_of_key(key: KeyPb) -> Partition:
    """Return the partition of a key."""
    where = key.partition_id
    return Partition(where.project_id, where.database_id, where.namespace_id)


def decoded(partition: Partition, encoded: bytes) -> KeyPb:
    """Return the key of an encoded path in a partition.

    Raises:
        ValueError, struct.error: the path is damaged.
    """
    key = Key()
    key.partition_id.project_id = partition.project
    key.partition_id.database_id = partition.database
    key.partition_id.namespace_id = partition.namespace
    return decode_path(encoded, key)


def rest(key: KeyPb) -> dict[str, Any]:
    """Return a key as in the REST API."""
    document: dict[str, Any] = json_format.MessageToDict(key)
    return document


def from_rest(document: Mapping[str, Any]) -> KeyPb:
    """Return the key of a document of the REST API."""
    return json_format.ParseDict(dict(document), Key())


def find(text: str, partition: Partition) -> KeyPb:
    """Return the key that somebody has typed: a GQL literal, its inside, or a urlsafe key.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    text = text.strip()
    literal = text if text.upper().startswith("KEY") else f"KEY({text})"
    parsed = GqlQuery(query_string=f"SELECT * WHERE __key__ = {literal}", allow_literals=True)
    try:
        query = gql.parse_query(parsed, partition)
        if query.filter.WhichOneof("filter_type") == "property_filter":
            return query.filter.property_filter.value.key_value
        raise invalid("This is more than a key.")
    except DatastoreError as error:
        legacy = _from_legacy(text, partition)
        if legacy is None:
            raise invalid(
                f"This is neither a key such as Task, 'a' or KEY(Task, 5), nor a urlsafe key:"
                f" {error.message}"
            ) from None
        return legacy


def legacy_urlsafe(key: KeyPb) -> str | None:
    """Return the urlsafe key of the client libraries, or None if they have none for it."""
    where = key.partition_id
    flat: list[str | int] = []
    for element in key.path:
        flat += [element.kind, element.name or element.id]
    try:
        of_client = _OfClients(
            *flat,
            project=where.project_id,
            namespace=where.namespace_id or None,
            database=where.database_id or None,
        )
        return bytes(of_client.to_legacy_urlsafe()).decode("ascii")
    except (ValueError, TypeError):
        return None


def _from_legacy(text: str, partition: Partition) -> KeyPb | None:
    try:
        of_client = _OfClients.from_legacy_urlsafe(text.encode("ascii"))
    except (ValueError, TypeError, DecodeError):
        return None
    key = Key()
    # "s~project": App Engine's region comes first.
    key.partition_id.project_id = of_client.project.rpartition("~")[2]
    key.partition_id.database_id = partition.database
    key.partition_id.namespace_id = of_client.namespace or ""
    for element in of_client.path:
        key.path.add(**element)
    return key


def to_word(raw: bytes) -> str:
    """Return bytes as one word for an address."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def from_word(word: str) -> bytes:
    """Return the bytes of a word.

    Raises:
        ValueError: the word has none.
    """
    try:
        return base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
