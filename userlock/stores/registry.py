"""The lease stores by the scheme of their URLs."""

from __future__ import annotations

import importlib
from urllib.parse import urlsplit

from userlock.lock.store import LeaseStore

#: A module with `open_url` for each scheme. Imported when it is used: some need an extra, and
#: Google's clients take long to import.
_MODULES = {
    "appengine": "userlock.stores.appengine",
    "datastore": "userlock.stores.datastore",
    "memcache": "userlock.stores.memcache",
    "memory": "userlock.stores.memory",
    "redis": "userlock.stores.redis",
    "rediss": "userlock.stores.redis",
}


def open_store(url: str) -> LeaseStore:
    """Return the store that a URL names; `ImportError` says which extra is missing."""
    if not isinstance(url, str):
        raise TypeError(
            f"a lease store's URL must be a str like 'memcache://127.0.0.1:11211', not {url!r:.80}"
        )
    parts = urlsplit(url)
    module = _MODULES.get(parts.scheme)
    if module is None:
        known = ", ".join(f"{name}://" for name in sorted(_MODULES))
        _, at, host = parts.netloc.rpartition("@")
        shown = parts._replace(netloc=f"***@{host}").geturl() if at else url  # no password
        raise ValueError(f"{shown!r} names no lease store: it must begin with one of {known}")
    store: LeaseStore = importlib.import_module(module).open_url(url)
    return store
