"""The keys of lock ids, behind a deployment's prefix, on a server that several share.

A key is the prefix, then `=` and a lock id or `#` and the hash of one (memcached and Redis put
`:lock` before the sign). The first sign ends the prefix, so no two ids share a key. Ids that fit
are used as they are, so that an operator can look them up by hand.
"""

from __future__ import annotations

import hashlib
import re

from userlock.stores.urls import AddressError

_PREFIX = re.compile(r"[!-~]{1,80}")
_PLAIN = re.compile(r"[!-~]{1,150}")


def check_prefix(prefix: str, also: str = "") -> str:
    """Return the prefix, if keys can begin with it. `also`: what else the store does not take."""
    refused = "=#" + also
    if not _PREFIX.fullmatch(prefix) or set(prefix) & set(refused):
        raise AddressError(
            "a key prefix must be 1 to 80 printable ASCII characters without spaces and without "
            f"any of {' '.join(refused)}"
        )
    return prefix


def hashed(lock_id: str) -> str:
    """Return the hash of a lock id, of any Unicode."""
    return hashlib.sha256(lock_id.encode("utf-8", "surrogatepass")).hexdigest()


class KeySpace:
    """A deployment's keys in memcached: at most 250 bytes, no spaces and control characters."""

    def __init__(self, prefix: str) -> None:
        self.space = f"{check_prefix(prefix)}:lock"

    def lock(self, lock_id: str) -> bytes:
        if _PLAIN.fullmatch(lock_id):
            return f"{self.space}={lock_id}".encode()
        return f"{self.space}#{hashed(lock_id)}".encode()
