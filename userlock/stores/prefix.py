"""The prefix of a deployment's keys, on a server that several share.

A key is the prefix, then `=` and a lock id or `#` and the hash of one (memcached and Redis put
`:lock` before the sign). The first of the two signs ends the prefix, so each key is of one prefix
and one id, whatever the id is.
"""

from __future__ import annotations

import re

from userlock.stores.urls import AddressError

_PREFIX = re.compile(r"[!-~]{1,80}")


def check_prefix(prefix: str, also: str = "") -> str:
    """Return the prefix, if keys can begin with it; `ValueError` otherwise.

    Args:
        prefix: the prefix.
        also: other characters that the store does not take.
    """
    refused = "=#" + also
    if not _PREFIX.fullmatch(prefix) or set(prefix) & set(refused):
        raise AddressError(
            "a key prefix must be 1 to 80 printable ASCII characters without spaces and without "
            f"any of {' '.join(refused)}"
        )
    return prefix
