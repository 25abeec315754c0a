"""The primary that Sentinels name, by redis-py's discovery: each new connection asks them.

redis-py would keep its connections to the Sentinels, which nobody closes.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from userlock.stores.redis.url import Named


class _Sentinels(Sentinel):
    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            found: tuple[str, int] = super().discover_master(service_name)  # type: ignore[no-untyped-call]
            return found
        except MasterNotFoundError:
            pass  # some releases of redis-py show the password in it
        finally:
            for sentinel in self.sentinels:
                sentinel.connection_pool.disconnect(inuse_connections=False)
        count = len(self.sentinels)
        raise MasterNotFoundError(
            f"none of {count} Sentinels answers with a primary of {service_name!r}"
        )


def client_of_sentinels(client: redis.Redis, named: Named) -> redis.Redis:
    """Return a client of the primary.

    Args:
        client: has the options of a connection: credentials, TLS and others.
        named: the Sentinels and the service.
    """
    given = client.connection_pool.connection_kwargs
    tls = {name: value for name, value in given.items() if name.startswith("ssl_")}
    if issubclass(client.connection_pool.connection_class, redis.SSLConnection):
        tls["ssl"] = True
    of_sentinels: dict[str, Any] = {
        **tls,
        **named.of_sentinels,
        "socket_connect_timeout": named.options["connect_timeout"],
        "socket_timeout": named.options["timeout"],
        "retry": Retry(NoBackoff(), 0),  # another one is asked instead
    }
    sentinels: Any = _Sentinels(named.addresses, sentinel_kwargs=of_sentinels)  # type: ignore[no-untyped-call]
    options = {name: given[name] for name in given if name not in ("host", "port", *tls)}
    primary: redis.Redis = sentinels.master_for(named.service, **options, **tls)
    return primary
