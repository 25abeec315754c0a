"""One entity group for each owner, a lock id in a namespace: the root key of its rows.

A transaction pays one group more, however many of these rows it writes. A tenant is a
namespace: its rows are in it, and nothing of one tenant is found in another.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import re
import secrets
import zlib
from collections.abc import Iterator
from typing import Any

from google.cloud import ndb
from google.cloud.ndb import metadata
from google.cloud.ndb.context import get_context

from userlock.clock import Clock
from userlock.ids import NAMESPACE
from userlock.ndb.context import current_context
from userlock.ndb.model import Model
from userlock.ndb.policies import WritePolicy

SHARDS = 16  # part of stored data: rows of another number would not be found
_MOST_NAME_BYTES = 1400  # most bytes of a name in a key, less room for a prefix
#: The roots of long names, and those of no owner.
_OTHER_ROOT = re.compile(r"#[0-9a-f]{64}|-[0-9a-f]{20}")

_ROOT = "UserLockOwner"


class OwnerRow(Model):
    """The root of an owner's group. It has no entity."""

    _write_policy = WritePolicy.NEVER_WRITTEN

    @classmethod
    def _get_kind(cls) -> str:
        return _ROOT


def name_of(text: str) -> str:
    """Return a key's name for a text of any length."""
    encoded = text.encode("utf-8", "surrogatepass")
    plain = len(encoded) <= _MOST_NAME_BYTES and text.isprintable()
    return f"={text}" if plain else f"#{hashlib.sha256(encoded).hexdigest()}"


def joined(*parts: object) -> str:
    """Return a key's name for several parts: another one for other parts, whatever is in them."""
    return name_of(json.dumps(parts, ensure_ascii=False, separators=(",", ":")))


def owner_key(owner: str, namespace: str | None = None) -> Any:
    """Return the root key of an owner's group; without a namespace, in that of the running code."""
    if namespace is None:
        namespace = current_namespace()
    return ndb.Key(_ROOT, name_of(owner), namespace=namespace)


def key_below(owner: str | None, kind: Any, name: str) -> Any:
    """Return the key of an owner's row, in the running code's namespace; None: of no owner."""
    root = f"-{secrets.token_hex(10)}" if owner is None else name_of(owner)
    return ndb.Key(_ROOT, root, kind._get_kind(), name, namespace=current_namespace())


def is_below_root(key: Any) -> bool:
    """Return whether `key_below` could have made a key, in some namespace, as far as its root."""
    name = key.flat()[1]
    if not isinstance(name, str) or not NAMESPACE.fullmatch(key.namespace() or ""):
        return False
    return name == name_of(name[1:]) or _OTHER_ROOT.fullmatch(name) is not None


def is_root_of(root: Any, owner: str | None) -> bool:
    """Return whether a root key is that of the owner's group; None: of a group without an owner."""
    if owner is None:
        name = root.id()
        return isinstance(name, str) and name.startswith("-")
    return bool(root == owner_key(owner, root.namespace() or ""))


def owner_of(root: Any) -> str | None:
    """Return the owner of a root key; None if only the rows tell."""
    name = root.id()
    return name[1:] if isinstance(name, str) and name.startswith("=") else None


def current_namespace() -> str:
    return get_context().get_namespace() or ""


@contextlib.contextmanager
def in_namespace(namespace: str) -> Iterator[None]:
    if current_namespace() == namespace:
        yield
    else:
        with current_context().new(namespace=namespace).use():
            yield


def in_namespace_of(key: Any) -> contextlib.AbstractContextManager[None]:
    """Run a block in the namespace of a key."""
    return in_namespace(key.namespace() or "")


def namespaces() -> list[str]:
    """Return the namespaces that have entities. Datastore may leave one out for some seconds."""
    return [name or "" for name in metadata.get_namespaces()]


def shard_of(key: Any) -> int:
    """Return the shard of a row: that of its owner. It keeps indexes from growing at one end."""
    root = key.flat()[1]
    return zlib.crc32(root.encode("utf-8", "surrogatepass")) % SHARDS


def shard_index(prefix: str, key: Any, micros: int) -> str:
    """Return the value of an index: rows of a prefix and a shard, by time."""
    return f"{prefix}|{shard_of(key):02d}|{max(micros, 0):016d}"


def shard_query(
    index: Any,
    model: Any,
    prefix: str,
    shard: int | None = None,
    *,
    since: int = 0,
    before: int | None = None,
    descending: bool = False,
    **options: Any,
) -> Any:
    """Return a query of rows by such an index, by time: of one shard, or of one after the other.

    From `since` on, and `before` a time, of one shard alone.
    """
    first = f"{prefix}|" if shard is None else f"{prefix}|{shard:02d}|"
    last = f"{first[:-1]}}}" if before is None else f"{first}{max(before, 0):016d}"
    if since > 0:
        first = f"{first}{since:016d}"
    query = model.query(index >= first, index < last, **options)
    return query.order(-index if descending else index)


def micros_now(clock: Clock) -> int:
    """Return the time in microseconds since 1970."""
    return round(clock.wall() * 1e6)


def micros_of(moment: datetime.datetime) -> int:
    """Return a naive time in UTC in microseconds since 1970."""
    return round(moment.replace(tzinfo=datetime.UTC).timestamp() * 1e6)


def moment_of(micros: int) -> datetime.datetime:
    """Return the reverse of `micros_of`."""
    return datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC).replace(tzinfo=None)
