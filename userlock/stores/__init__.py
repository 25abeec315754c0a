"""The lease stores: one module or folder for each kind, behind `LeaseStore`."""

from __future__ import annotations

from urllib.parse import urlsplit

from userlock.lock.registry import register_store
from userlock.lock.store import LeaseStore
from userlock.stores.memcache import MemcacheStore, ShardedMemcacheStore
from userlock.stores.memcache import open_url as open_memcache
from userlock.stores.memory import MemoryStore

__all__ = ["MemcacheStore", "MemoryStore", "ShardedMemcacheStore"]


def _memory(url: str) -> MemoryStore:
    parts = urlsplit(url)
    if parts.netloc or parts.path or parts.query:
        raise ValueError(f"{url!r}: the memory store takes no options; use memory://")
    return MemoryStore()


def _appengine(url: str) -> LeaseStore:
    # Only whoever asks for it needs the extra; so with Redis.
    from userlock.stores.appengine import AppEngineStore

    return AppEngineStore.from_url(url)


def _datastore(url: str) -> LeaseStore:
    # Nor should everybody wait for Google's clients to be imported.
    from userlock.stores.datastore import DatastoreStore

    return DatastoreStore.from_url(url)


def _redis(url: str) -> LeaseStore:
    from userlock.stores.redis import RedisStore

    return RedisStore.from_url(url)


register_store("appengine", _appengine)
register_store("datastore", _datastore)
register_store("memcache", open_memcache)
register_store("memory", _memory)
register_store("redis", _redis)
register_store("rediss", _redis)
