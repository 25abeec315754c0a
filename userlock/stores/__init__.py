"""The lease stores: one module or folder for each kind, behind `LeaseStore`.

Those that need an extra, or Google's clients, are imported from their own modules.
"""

from __future__ import annotations

from userlock.stores.memcache import MemcacheStore, ShardedMemcacheStore
from userlock.stores.memory import MemoryStore

__all__ = ["MemcacheStore", "MemoryStore", "ShardedMemcacheStore"]
