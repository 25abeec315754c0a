"""Leases in memcached."""

from userlock.stores.memcache.store import MemcacheStore

__all__ = ["MemcacheStore"]
