"""Functions for operators of the Redis store.

See `ListingStore`, `TimedStore` and `ExaminableStore` in `userlock.lock.store`.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import redis

from userlock.lock.store import (
    GRACE_SECONDS,
    Finding,
    Listed,
    ListingStopped,
    Stored,
    StoreUnavailable,
)
from userlock.stores.redis.connections import REPLY_TIMEOUT, TROUBLE, Connections

#: How long looking through the keys of a database may take, in seconds.
LIST_SECONDS = 2.0
_SCAN_COUNT = 1000
_BATCH = 100


class ForOperators:
    """Looks at the server over connections of its own."""

    _connections: Connections
    _prefix: str

    def lock_ids(self, limit: int) -> Iterator[Listed]:
        """As `ListingStore.lock_ids`. SCAN goes through all keys of the database."""
        begin = f"{self._prefix}:lock=".encode()
        pattern = re.sub(rb"([\\*?\[\]^])", rb"\\\1", begin) + b"*"
        found: set[bytes] = set()
        ends = time.monotonic() + LIST_SECONDS
        with self._looking() as connection:
            cursor: bytes = b"0"
            while True:
                cursor, keys = _ask(
                    connection, "SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT
                )
                for key in keys:
                    if key in found:
                        continue
                    found.add(key)
                    yield Listed(_lock_id(key[len(begin) :]), False, key)
                    if len(found) >= limit:
                        return
                if cursor == b"0":
                    return
                if time.monotonic() > ends:
                    raise ListingStopped(
                        "the database has so many keys that not all could be seen in "
                        f"{LIST_SECONDS:g} s"
                    )

    def read_listed(self, listed: Sequence[Listed]) -> list[Stored | None]:
        """As `ListingStore.read_listed`. What is no string is passed over."""
        from userlock.stores.redis.store import _stored

        answers: list[Stored | None] = []
        with self._looking() as connection:
            for begin in range(0, len(listed), _BATCH):
                keys = [cast(bytes, each.key) for each in listed[begin : begin + _BATCH]]
                values = _ask(connection, "MGET", *keys)
                connection.send_packed_command(
                    connection.pack_commands([("PTTL", key) for key in keys])
                )
                left = [connection.read_response(disable_decoding=True) for _ in keys]
                answers += [
                    None if value is None else _stored([value, rest])
                    for value, rest in zip(values, left, strict=True)
                ]
        return answers

    def seconds_left(self, lock_id: str) -> float | None:
        """As `TimedStore.seconds_left`."""
        with self._looking() as connection:
            left = _ask(connection, "PTTL", self._key(lock_id))
            return None if left < 0 else max(left / 1000 - GRACE_SECONDS, 0.0)

    def examine(self) -> list[Finding]:
        """As `ExaminableStore.examine`."""
        # Nobody else should have to load it.
        from userlock.stores.redis.examination import examine
        from userlock.stores.redis.store import RedisStore
        from userlock.stores.trial import try_out, unreachable

        assert isinstance(self, RedisStore)
        server = f"redis at {self._connections.name}"
        try:
            began = time.monotonic()
            with self._looking() as connection:
                connected = time.monotonic() - began
                findings = examine(connection, server, connected, f"{self._prefix}:doctor")
        except StoreUnavailable as trouble:
            return [
                unreachable(
                    server,
                    trouble.reason.partition(": ")[2],
                    "Is it running, are the address and the password right, and may this machine "
                    "connect to it? Until it answers, locks are taken on trust.",
                )
            ]
        return findings + try_out(self, server, patience=REPLY_TIMEOUT)

    def _key(self, lock_id: str) -> bytes:
        raise NotImplementedError

    @contextlib.contextmanager
    def _looking(self) -> Iterator[Any]:
        """Return a connection that is closed afterwards, and trouble as others know it."""
        connection = None
        try:
            connection = self._connections.take(hurry=False)
            connection.connect()
            yield connection
        except TROUBLE as error:
            slow = isinstance(error, redis.TimeoutError | TimeoutError)
            raise StoreUnavailable(
                f"redis at {self._connections.name}: {str(error) or type(error).__name__}",
                slow=slow,
            ) from error
        finally:
            if connection is not None:
                self._connections.close(connection)


def _lock_id(name: bytes) -> str:
    try:
        return name.decode("utf-8", "surrogatepass")  # as the store encodes them
    except UnicodeDecodeError:  # not one of ours
        return name.decode("utf-8", "surrogateescape")


def _ask(connection: Any, *command: str | bytes | int) -> Any:
    connection.send_command(*command)
    return connection.read_response(disable_decoding=True)
