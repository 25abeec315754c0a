"""A lock's row: its name, its properties, and when it has lapsed. No I/O.

Time is Datastore's alone. It says when a row was written (`update_time`) and when it was read
(`read_time`), both by one clock that orders commits (google.datastore.v1 `EntityResult`,
`LookupResponse`, `QueryResultBatch`), so clients' clocks may be far apart. An append changes the
update time, so it stores the beginning that it found as `leased_at`. The first write cannot: only
the answer to it tells the time.

Names. A key's name has at most 1,500 bytes of UTF-8, is not `__…__`, and should have no slash
(https://cloud.google.com/datastore/docs/best-practices); a lock id may be any text. Ids that fit
are used as they are, for the console; others by their SHA-256. A sign after the prefix keeps the
two apart.
"""

from __future__ import annotations

import math
import re
import secrets
from typing import Any, NamedTuple

from userlock.datastore_rpc import Entity
from userlock.lock.store import GRACE_SECONDS, Stored, StoreUnavailable
from userlock.stores import keys
from userlock.stores.urls import AddressError

DEFAULT_KIND = "UserLockLease"
MAX_NAME_BYTES = 1500

# Fixed ranges, not `str.isprintable`: that depends on Python's version, and
# two processes that share a lock must call it the same.
_PLAIN = re.compile("[^\x00-\x1f\x7f-\x9f/\ud800-\udfff]+")
_RESERVED = re.compile("__.*__")

#: All properties, none of them indexed.
RECORD = "record"
TTL = "ttl_microseconds"
LEASED_AT = "leased_at"
EXPIRE_AT = "expire_at"
WRITE_ID = "write_id"

_TYPES = {RECORD: "blob_value", TTL: "integer_value"}

_SECOND = 1_000_000
_GRACE = int(GRACE_SECONDS * _SECOND)
# How much longer than its time to live a row counts: a holder's clock is corrected by up to 1/2000
# of its rate, and a leap second is smeared by 1/86400.
_SLACK = 50_000
_SLACK_PART = 1000
# `expire_at` comes from a client's clock: one that is hours behind must not have a living row swept
# away.
_SWEEP_AFTER = 86_400 * _SECOND
_LAST_TIMESTAMP = 253_402_300_799 * _SECOND  # the year 9999


class Row(NamedTuple):
    """A row as it was read. Times in microseconds since 1970, by Datastore's clock."""

    record: bytes
    ttl: int
    expire_at: int  # when it may be swept
    write_id: bytes  # of the write that made this state
    began: int = 0  # its time to live; 0: when it was written
    version: int = 0  # Datastore's name for this state, which no other one of the row ever has
    now: int = 0  # when it was read

    @property
    def left(self) -> int:
        return self.began + self.ttl + _SLACK + self.ttl // _SLACK_PART - self.now

    @property
    def gone(self) -> bool:
        """Return whether it counts as gone, although it is still there."""
        return self.left <= -_GRACE

    @property
    def stored(self) -> Stored:
        return Stored(self.record, self.version, self.left <= 0, self.left / _SECOND)

    def entity(self, key: Any) -> Any:
        entity = Entity(key=key)
        properties = entity.properties
        properties[RECORD].blob_value = self.record
        properties[TTL].integer_value = self.ttl
        properties[EXPIRE_AT].timestamp_value.FromMicroseconds(self.expire_at)
        properties[WRITE_ID].blob_value = self.write_id
        if self.began:
            properties[LEASED_AT].timestamp_value.FromMicroseconds(self.began)
        for value in properties.values():
            value.exclude_from_indexes = True
        return entity


def new_write_id() -> bytes:
    """Return a random name for one write, without which an extension would begin no new life.

    Datastore gives an unchanged row no new version and update time (`MutationResult.version`).
    """
    return secrets.token_bytes(8)


def fresh(record: bytes, ttl_seconds: float, wall: float) -> Row:
    """Return a row that begins a life. `wall` is now, only for sweeping dead rows."""
    ttl = math.ceil(ttl_seconds * _SECOND)
    sweep = min(int(wall * _SECOND) + ttl + _GRACE + _SWEEP_AFTER, _LAST_TIMESTAMP)
    return Row(record, ttl, sweep, new_write_id())


def read_row(result: Any, read_time: Any) -> Row:
    """Return the row in an `EntityResult`; `ValueError` if it is not one of ours."""
    properties = result.entity.properties
    for name, kind in _TYPES.items():
        # A name that is missing is added to this copy, without a type.
        if properties[name].WhichOneof("value_type") != kind:
            raise ValueError("something else stores entities of this kind, under this name")
    now, changed = read_time.ToMicroseconds(), result.update_time.ToMicroseconds()
    if not now or not changed:
        raise StoreUnavailable("datastore: the server does not say when rows are written and read")
    began = properties[LEASED_AT].timestamp_value if LEASED_AT in properties else result.update_time
    return Row(
        record=properties[RECORD].blob_value,
        ttl=properties[TTL].integer_value,
        expire_at=properties[EXPIRE_AT].timestamp_value.ToMicroseconds(),
        write_id=properties[WRITE_ID].blob_value,
        began=began.ToMicroseconds(),
        version=result.version,
        now=now,
    )


def check_prefix(prefix: str) -> str:
    """Return the prefix, if names can begin with it; `ValueError` otherwise."""
    if prefix.startswith("__"):
        raise AddressError("a key prefix must not begin with '__'")
    return keys.check_prefix(prefix, also="/")


def check_kind(kind: str) -> str:
    """Return the kind, if Datastore takes it; `ValueError` otherwise."""
    plain = _PLAIN.fullmatch(kind) and not _RESERVED.fullmatch(kind)
    if not plain or len(kind.encode()) > MAX_NAME_BYTES:
        raise AddressError(
            f"a kind must be 1 to {MAX_NAME_BYTES} bytes of UTF-8 without '/' and control "
            f"characters, and not '__…__'"
        )
    return kind


def row_name(prefix: str, lock_id: str) -> str:
    """Return the name of the row of `lock_id`. Different lock ids never share a name."""
    if _PLAIN.fullmatch(lock_id):
        name = f"{prefix}={lock_id}"
        if len(name.encode()) <= MAX_NAME_BYTES:
            return name
    return f"{prefix}#{keys.hashed(lock_id)}"
