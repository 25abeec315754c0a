"""Leases in Redis. Needs the extra `redis`."""

from __future__ import annotations

from urllib.parse import SplitResult

try:
    import redis as _redis  # noqa: F401 (imported here for a clear message where it is missing)
except ImportError as error:  # ndb brings it along today
    raise ImportError("the Redis store needs redis-py: pip install 'userlock[redis]'") from error

from userlock.stores import urls
from userlock.stores.redis.cluster import ClusterStore
from userlock.stores.redis.store import RedisStore

__all__ = ["ClusterStore", "RedisStore", "open_url"]


def open_url(url: str) -> RedisStore:
    """Return the store that a URL names: one server's, that of Sentinels, or a cluster's."""
    return urls.open_url(url, _of_parts)


def _of_parts(parts: SplitResult) -> RedisStore:
    kind = ClusterStore if parts.scheme.endswith("+cluster") else RedisStore
    return kind.of_parts(parts)
