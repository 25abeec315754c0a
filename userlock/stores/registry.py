"""The lease stores by the scheme of their URLs."""

from __future__ import annotations

import importlib
from urllib.parse import SplitResult

from userlock.lock.store import LeaseStore
from userlock.stores.urls import SCHEMES, open_url, unknown_scheme

#: The modules of schemes that have not a module of their own.
_MODULES = {"memcaches": "memcache", "rediss": "redis", "valkey": "redis", "valkeys": "redis"}


def open_store(url: str) -> LeaseStore:
    """Return the store that a URL names.

    Raises:
        ValueError: the URL is malformed. The text shows neither user nor password.
        ImportError: an extra is missing; the text names it.
    """
    return open_url(url, _of_parts)


def _of_parts(parts: SplitResult) -> LeaseStore:
    if parts.scheme not in SCHEMES:
        raise unknown_scheme(parts.scheme)
    kind = parts.scheme.partition("+")[0]
    # Imported when it is used: some need an extra, and Google's clients take long to import.
    module = importlib.import_module(f"userlock.stores.{_MODULES.get(kind, kind)}")
    store: LeaseStore = module.of_parts(parts)
    return store
