"""Leases in memcached."""

from userlock.stores.memcache.sharded import ShardedMemcacheStore, of_parts
from userlock.stores.memcache.store import MemcacheStore

__all__ = ["MemcacheStore", "ShardedMemcacheStore", "of_parts"]
