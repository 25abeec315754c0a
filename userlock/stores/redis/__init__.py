"""Leases in Redis. Needs the extra `redis`."""

from __future__ import annotations

from urllib.parse import SplitResult

try:
    import redis as _redis  # noqa: F401 (imported here for a clear message where it is missing)
except ImportError as error:  # ndb brings it along today
    raise ImportError("the Redis store needs redis-py: pip install 'userlock[redis]'") from error

from userlock.stores.redis.cluster import ClusterStore
from userlock.stores.redis.store import RedisStore
from userlock.stores.redis.url import client_of, parse

__all__ = ["ClusterStore", "RedisStore", "of_parts"]


def of_parts(parts: SplitResult) -> RedisStore:
    """Return the store that a URL names: one server's, that of Sentinels, or a cluster's."""
    named = parse(parts)
    client = client_of(named)
    if named.kind == "cluster":
        return ClusterStore(client, named.addresses, **named.options)
    return RedisStore(client, **named.options)
