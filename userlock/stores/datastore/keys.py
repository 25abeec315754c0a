"""Lock ids as names of Datastore rows.

A key's name has at most 1,500 bytes of UTF-8, is not `__…__`, and the best
practices ask for one without slashes; a lock id may be any text. Ids that fit
are used as they are, so that an operator can look them up in the console;
others by their SHA-256. The sign after the prefix keeps the two apart.

Sources: google.datastore.v1 entity.proto (`Key.PathElement`);
https://cloud.google.com/datastore/docs/best-practices (names of kinds and keys).
"""

from __future__ import annotations

import hashlib
import re

DEFAULT_KIND = "UserLockLease"
MAX_NAME_BYTES = 1500

# Fixed ranges, not `str.isprintable`: that depends on Python's version, and
# two processes that share a lock must call it the same.
_PLAIN = re.compile("[^\x00-\x1f\x7f-\x9f/\ud800-\udfff]+")
# Without what ends it in a row's name.
_PREFIX = re.compile(r"(?!__)[!-~]{1,80}")
_RESERVED = re.compile("__.*__")


def check_prefix(prefix: str) -> str:
    """Return the prefix, if names can begin with it; `ValueError` otherwise."""
    if not _PREFIX.fullmatch(prefix) or set(prefix) & set("=#/"):
        raise ValueError(
            "a key prefix must be 1 to 80 printable ASCII characters without spaces, '=', '#' "
            f"and '/', and not begin with '__', not {prefix!r:.100}"
        )
    return prefix


def check_kind(kind: str) -> str:
    """Return the kind, if Datastore takes it; `ValueError` otherwise."""
    if (
        not _PLAIN.fullmatch(kind)
        or _RESERVED.fullmatch(kind)
        or len(kind.encode()) > MAX_NAME_BYTES
    ):
        raise ValueError(
            f"a kind must be 1 to {MAX_NAME_BYTES} bytes of UTF-8 without '/' and control "
            f"characters, and not '__…__', not {kind!r:.100}"
        )
    return kind


def row_name(prefix: str, lock_id: str) -> str:
    """Return the name of the row of `lock_id`. Different lock ids never share a name."""
    if _PLAIN.fullmatch(lock_id):
        name = f"{prefix}={lock_id}"
        if len(name.encode()) <= MAX_NAME_BYTES:
            return name
    digest = hashlib.sha256(lock_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{prefix}#{digest}"
