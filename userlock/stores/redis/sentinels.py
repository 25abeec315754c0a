"""The primary that Sentinels name. Each new connection to it asks them.

redis-py's client would ask them without a deadline or a bound, with a look-up of their names that
may hang, and fail with errors of its own for a malformed reply. It would keep the connections.

Source of the reply: https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import AuthenticationError
from redis.sentinel import MasterNotFoundError, Sentinel

from userlock.lock.store import StoreUnavailable
from userlock.stores.address import Address
from userlock.stores.redis.connections import Connection, Connections
from userlock.stores.stream import Refused, number
from userlock.waits import run


class _Sentinel(Connections):
    """The connections of this process to one Sentinel."""

    any_address = True


class Sentinels(Sentinel):
    """Sentinels, for the connections of redis-py's that ask where the primary is. Thread-safe."""

    def __init__(self, pools: Sequence[Any], connect_timeout: float, timeout: float) -> None:
        super().__init__([])  # type: ignore[no-untyped-call]
        self._servers = [
            _Sentinel(each, connect_timeout=connect_timeout, timeout=timeout) for each in pools
        ]
        self._connect_timeout = connect_timeout
        self._primary = Address("", 0)

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the host and port that the first Sentinel that answers names."""
        servers, reason = self._servers, ""
        for server in servers:
            try:
                found = run(server.ask_apart, _named, None, service_name.encode())
            except StoreUnavailable as trouble:
                reason = trouble.reason
                if isinstance(trouble.__cause__, AuthenticationError):
                    reason += " To fix it: give sentinel_username= and sentinel_password="
                continue
            if server is not servers[0]:  # next time this one is asked first
                self._servers = sorted(servers, key=lambda each: each is not server)
            if found != (self._primary.host, self._primary.port):
                self._primary = Address(*found)
            run(self._primary.resolve, self._connect_timeout)  # redis-py looks it up again
            return found
        raise MasterNotFoundError(
            f"none of {len(servers)} Sentinels answers with a primary of {service_name!r} "
            f"(the last: {reason})"
        )


async def _named(connection: Connection, service: bytes) -> tuple[str, int]:
    reply = await connection.call(b"SENTINEL", b"MASTER", service)
    if not isinstance(reply, list) or not all(isinstance(each, bytes) for each in reply):
        raise Refused("it answered SENTINEL MASTER with something else than fields")
    fields = dict(zip(reply[::2], reply[1::2], strict=False))
    flags = fields.get(b"flags", b"").split(b",")
    if b"master" not in flags or b"s_down" in flags or b"o_down" in flags:
        raise Refused("it knows of no primary that is up")
    port = number(fields.get(b"port", b""))
    if not fields.get(b"ip") or not 0 < port < 65536:
        raise Refused("it answered SENTINEL MASTER without an address")
    return fields[b"ip"].decode("ascii", "replace"), port
