"""Leases in memcached."""

from userlock.stores.memcache.store import MemcacheStore, ShardedMemcacheStore, of_parts

__all__ = ["MemcacheStore", "ShardedMemcacheStore", "of_parts"]
