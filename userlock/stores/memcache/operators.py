"""Functions for operators of the memcached stores.

See `ListingStore`, `TimedStore` and `ExaminableStore` in `userlock.lock.store`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from userlock.lock.store import (
    GRACE_SECONDS,
    Finding,
    Listed,
    ListingStopped,
    Stored,
    StoreUnavailable,
)
from userlock.stores.memcache.connections import Connections
from userlock.stores.memcache.dialects import Item
from userlock.stores.memcache.keys import KeySpace
from userlock.stores.memcache.listing import listed, read_all, remaining
from userlock.stores.memcache.wire import TROUBLE, Connection, Refused

if TYPE_CHECKING:
    from userlock.stores.memcache.store import MemcacheStore


class ForOperators:
    """Looks at one server over connections of its own."""

    address: str
    _connections: Connections
    _keys: KeySpace
    _via_proxy: bool

    def lock_ids(self, limit: int) -> Iterator[Listed]:
        """As `ListingStore.lock_ids`."""
        with self._looking() as connection:
            yield from listed(connection, self._keys, limit)

    def read_listed(self, listed: Sequence[Listed]) -> list[Stored | None]:
        """As `ListingStore.read_listed`."""
        with self._looking() as connection:
            keys = [cast(bytes, each.key) for each in listed]
            return [_stored(item) for item in read_all(connection, keys)]

    def seconds_left(self, lock_id: str) -> float | None:
        """As `TimedStore.seconds_left`: whole seconds. None with the text protocol."""
        with self._looking() as connection:
            seconds = remaining(connection, self._keys.lock(lock_id))
            return None if seconds is None else max(float(seconds - GRACE_SECONDS), 0.0)

    def examine(self) -> list[Finding]:
        """As `ExaminableStore.examine`."""
        # Nobody else should have to load it.
        from userlock.stores.memcache.examination import Examined, examine
        from userlock.stores.memcache.store import REPLY_TIMEOUT, MemcacheStore
        from userlock.stores.trial import new_lock_id

        assert isinstance(self, MemcacheStore)
        key = self._keys.lock(new_lock_id())
        server = f"memcached at {self.address}"
        return examine(
            Examined(self, server, self._connections, key, self._via_proxy, REPLY_TIMEOUT)
        )

    @contextlib.contextmanager
    def _looking(self) -> Iterator[Connection]:
        """Return a connection that is closed afterwards, and trouble as others know it."""
        connection: Connection | None = None
        try:
            connection = self._connections.make()
            yield connection
        except (*TROUBLE, Refused) as error:
            slow = isinstance(error, TimeoutError | BlockingIOError)
            what = "timed out" if slow else str(error) or type(error).__name__
            raise StoreUnavailable(f"memcached at {self.address}: {what}", slow=slow) from error
        finally:
            if connection is not None:
                connection.close()


class ForOperatorsOfSeveral:
    """Looks at each server in turn; examines them at the same time."""

    servers: tuple[MemcacheStore, ...]

    def lock_ids(self, limit: int) -> Iterator[Listed]:
        """As `ListingStore.lock_ids`. Without those of a server that is down; it says so."""
        missing: list[str] = []
        trouble: StoreUnavailable | None = None
        for number, server in enumerate(self.servers):
            try:
                for found in server.lock_ids(limit):
                    limit -= 1
                    yield found._replace(key=(number, found))
            except StoreUnavailable as error:
                trouble = error
                missing.append(error.reason)
            except ListingStopped as stopped:
                missing.append(f"memcached at {server.address}: {stopped}")
            if limit <= 0:
                return
        if trouble is not None and len(missing) == len(self.servers):
            raise trouble
        if missing:
            raise ListingStopped("; ".join(missing))

    def read_listed(self, listed: Sequence[Listed]) -> list[Stored | None]:
        """As `ListingStore.read_listed`."""
        parts: dict[int, list[Listed]] = {}
        for each in listed:
            number, found = cast("tuple[int, Listed]", each.key)
            parts.setdefault(number, []).append(found)
        records = {
            number: iter(self.servers[number].read_listed(part)) for number, part in parts.items()
        }
        return [next(records[cast("tuple[int, Listed]", each.key)[0]]) for each in listed]

    def seconds_left(self, lock_id: str) -> float | None:
        """As `TimedStore.seconds_left`."""
        return self._server(lock_id).seconds_left(lock_id)

    def examine(self) -> list[Finding]:
        """As `ExaminableStore.examine`: each server."""
        from userlock.stores.memcache.examination import examine_each

        return examine_each([each.examine for each in self.servers])

    def _server(self, lock_id: str) -> MemcacheStore:
        raise NotImplementedError


def _stored(item: Item | None) -> Stored | None:
    if item is None:
        return None
    lapsed = item.remaining is not None and item.remaining <= GRACE_SECONDS
    return Stored(item.record, None, lapsed)
