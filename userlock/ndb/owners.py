"""One entity group for each owner, a lock id: its jobs and requests are below one root key.

A transaction pays one group more, however many of these rows it writes. The root
has no entity.
"""

from __future__ import annotations

import datetime
import hashlib
import zlib
from typing import Any

from google.cloud import ndb

from userlock.ndb.model import Model
from userlock.ndb.policies import WritePolicy

#: Part of stored data: rows of another number would not be found.
SHARDS = 16
#: Most bytes of a name in a key, less room for a prefix.
_MOST_NAME_BYTES = 1400


class OwnerRow(Model):
    """The root of an owner's group. It has no entity."""

    _write_policy = WritePolicy.NEVER_WRITTEN

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockOwner"


def name_of(text: str) -> str:
    """Return a key's name for a text of any length."""
    encoded = text.encode("utf-8", "surrogatepass")
    plain = len(encoded) <= _MOST_NAME_BYTES and text.isprintable()
    return f"={text}" if plain else f"#{hashlib.sha256(encoded).hexdigest()}"


def owner_key(owner: str) -> Any:
    """Return the root key of an owner's group, in the default namespace."""
    return ndb.Key(OwnerRow._get_kind(), name_of(owner), namespace="")


def owner_of(root: Any) -> str | None:
    """Return the owner of a root key; None if only the rows tell."""
    name = root.id()
    return name[1:] if isinstance(name, str) and name.startswith("=") else None


def shard_of(key: Any) -> int:
    """Return the shard of a row: that of its owner. It keeps indexes from growing at one end."""
    root = key.root().id().encode("utf-8", "surrogatepass")
    return zlib.crc32(root) % SHARDS


def shard_index(prefix: str, key: Any, micros: int) -> str:
    """Return the value of an index: rows of a prefix and a shard, by time."""
    return f"{prefix}|{shard_of(key):02d}|{max(micros, 0):016d}"


def micros_of(moment: datetime.datetime) -> int:
    """Return a naive time in UTC in microseconds since 1970."""
    return round(moment.replace(tzinfo=datetime.UTC).timestamp() * 1e6)


def moment_of(micros: int) -> datetime.datetime:
    """Return the reverse of `micros_of`."""
    return datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC).replace(tzinfo=None)
