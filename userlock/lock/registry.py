"""The lease stores by the scheme of their URLs. Stores register themselves here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from urllib.parse import urlsplit

from userlock.lock.store import LeaseStore

_Opener = Callable[[str], LeaseStore]
_OPENERS: dict[str, _Opener] = {}


def register_store(scheme: str, opener: _Opener) -> None:
    """Let `LockService.from_url` open `scheme://…` addresses with `opener(url)`."""
    _OPENERS[scheme] = opener


def open_store(url: str) -> LeaseStore:
    """Return the store that a URL names; `ValueError` says which there are."""
    if not isinstance(url, str):
        raise TypeError(
            f"a lease store's URL must be a str like 'memcache://127.0.0.1:11211', not {url!r:.80}"
        )
    # By name, since stores know this package, and not the other way round.
    importlib.import_module("userlock.stores")
    parts = urlsplit(url)
    opener = _OPENERS.get(parts.scheme)
    if opener is None:
        known = ", ".join(f"{name}://" for name in sorted(_OPENERS))
        _, at, host = parts.netloc.rpartition("@")
        shown = parts._replace(netloc=f"***@{host}").geturl() if at else url  # no password
        raise ValueError(f"{shown!r} names no lease store: it must begin with one of {known}")
    return opener(url)
