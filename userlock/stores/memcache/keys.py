"""Lock ids as memcached keys.

A memcached key has at most 250 bytes, without spaces or control characters;
a lock id may be any text. Ids that fit are used as they are, so that an
operator can look them up by hand; others by their SHA-256. The sign before the
id keeps the two apart.
"""

from __future__ import annotations

import hashlib
import re

from userlock.stores.prefix import check_prefix

_PLAIN = re.compile(r"[!-~]{1,150}")


class KeySpace:
    """The keys of one deployment's locks on a shared server.

    Attributes:
        space: begins every key.
    """

    __slots__ = ("space",)

    def __init__(self, prefix: str) -> None:
        self.space = f"{check_prefix(prefix)}:lock"

    def lock(self, lock_id: str) -> bytes:
        """Return the key of the record of `lock_id`."""
        if _PLAIN.fullmatch(lock_id):
            return f"{self.space}={lock_id}".encode()
        digest = hashlib.sha256(lock_id.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.space}#{digest}".encode()
