"""Leases in memcached."""

from userlock.stores.memcache.sharded import ShardedMemcacheStore, open_url
from userlock.stores.memcache.store import MemcacheStore

__all__ = ["MemcacheStore", "ShardedMemcacheStore", "open_url"]
