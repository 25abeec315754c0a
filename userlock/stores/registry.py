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
    # Imported when it is used: some need an extra, and Google's clients take long to import.
    module = importlib.import_module(open_url(url, _module_of))
    store: LeaseStore = module.open_url(url)
    return store


def _module_of(parts: SplitResult) -> str:
    if parts.scheme not in SCHEMES:
        raise unknown_scheme(parts.scheme)
    kind = parts.scheme.partition("+")[0]
    return f"userlock.stores.{_MODULES.get(kind, kind)}"
