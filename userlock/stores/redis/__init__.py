"""Leases in Redis. Needs the extra `redis`."""

from __future__ import annotations

try:
    import redis as _redis  # noqa: F401 (imported here for a clear message where it is missing)
except ImportError as error:  # ndb brings it along today
    raise ImportError("the Redis store needs redis-py: pip install 'userlock[redis]'") from error

from userlock.stores.redis.cluster import ClusterStore
from userlock.stores.redis.store import RedisStore

__all__ = ["ClusterStore", "RedisStore", "open_url"]

open_url = RedisStore.from_url
