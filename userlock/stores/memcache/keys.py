"""Lock ids as memcached keys, and holder records as lines of the meta protocol.

A memcached key has at most 250 bytes, without spaces or control characters;
a lock id may be anything. Ids that fit are used as they are, so that an
operator can look them up by hand; others by their SHA-256. The letter after
the prefix keeps the two apart, and lock keys from waiter keys.
"""

from __future__ import annotations

import hashlib
import re

MAX_KEY_BYTES = 250
_PLAIN = re.compile(r"[!-~]{1,150}")
_PREFIX = re.compile(r"[!-~]{1,80}")


def check_prefix(prefix: str) -> str:
    """The prefix, if memcached can carry it; `ValueError` otherwise."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f"a key prefix must be 1 to 80 printable ASCII characters without spaces, "
            f"not {prefix!r:.100}"
        )
    return prefix


class KeySpace:
    """The keys of one deployment's locks on a shared server."""

    __slots__ = ("_lock", "_wait")

    def __init__(self, prefix: str) -> None:
        check_prefix(prefix)
        self._lock = f"{prefix}:lock"
        self._wait = f"{prefix}:wait"

    def lock(self, lock_id: str) -> bytes:
        """Where the lease of `lock_id` is stored."""
        if _PLAIN.fullmatch(lock_id):  # as in `_key`, without its call
            return f"{self._lock}={lock_id}".encode()
        return _key(self._lock, lock_id)

    def waiting(self, lock_id: str) -> bytes:
        """Where it is stored that somebody waits for `lock_id`."""
        return _key(self._wait, lock_id)


def _key(space: str, lock_id: str) -> bytes:
    if _PLAIN.fullmatch(lock_id):
        return f"{space}={lock_id}".encode()
    digest = hashlib.sha256(lock_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{space}#{digest}".encode()
