"""Leases in memcached, through pymemcache. `dialects` says what each verb sends.

Why a version can be trusted. memcached's CAS numbers begin again at 1 when
the server restarts, so a number alone could name the next owner's record. It
is used alone only on a connection that was made before the number was got and
has not broken since; a restart would have cut it. On any other connection the
record is read first and compared with the one that the number stood for, and
the number that came with it is used, on that same connection:

    we                    memcached                next owner
    ms k … ─────────────▶ HD c1
                          (restarts, empty)
                          HD c1 ◀───────────────── ms k …
    connection is cut
    md k C1 would delete the next owner's record:
    mg k ───────────────▶ (the next owner's record)
    not as we left it: changed, and nothing is deleted

Limits. All this takes connections to memcached itself; behind a proxy that
reconnects by itself, say `via_proxy`. memcached may evict a live record under
memory pressure, and forgets all of them on a restart: the lock then does not
exclude, and fencing at the Datastore commit is what refuses the loser's write.
A record is stored until a date in the server's own time (`server_time`), so it
is kept for one to four seconds longer than asked, and never shorter, whatever
the server's clock shows when it carries the command out. Behind a proxy, and
where the server does not tell its time (`stats`), seconds are stored instead: a
server that was just stopped for a while (SIGSTOP, a paused or migrated machine)
then counts them from an earlier moment, and two leases may overlap. Servers
before 1.6.12 are spoken to in the text protocol: a crashed
holder's lock may then go to somebody who came later than those in line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pymemcache.exceptions import MemcacheError

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.store import GRACE_SECONDS, Stored, StoreUnavailable, Swap
from userlock.stores.memcache.connections import ClientFactory, Connections, plain_client
from userlock.stores.memcache.dialects import Item
from userlock.stores.memcache.keys import KeySpace
from userlock.stores.memcache.operators import ForOperators
from userlock.stores.memcache.url import split_address
from userlock.stores.memcache.wire import SLOW, TROUBLE, Connection, Refused, is_a_break

CONNECT_TIMEOUT = 0.1
REPLY_TIMEOUT = 0.3
#: A reply that took too long costs this much more to look for what became of the command.
#: Together with `REPLY_TIMEOUT`, what a hanging server costs one request before the breaker
#: opens.
HURRY_TIMEOUT = 0.1

_new_tuple = tuple.__new__


class _Version(NamedTuple):
    """A state of a record: its CAS number (0: not known), since when, what it was, and where."""

    cas: int
    got: int
    record: bytes
    key: bytes


class MemcacheStore(ForOperators):
    """A lease store in one memcached server. Thread-safe; survives fork.

    Args:
        address: `HOST:PORT` of the server.
        prefix: begins every key, so that deployments can share a server. 1 to 80 printable
            ASCII characters.
        connect_timeout: in seconds.
        timeout: for a reply, in seconds.
        via_proxy: there is something in between (mcrouter, twemproxy, Envoy) whose connections
            outlive memcached's. Every change then reads the record first, one round trip more.
        protocol: "meta", "text", or None to ask each server what it speaks. The same in all
            processes: by the text protocol a record is stored without the grace that the meta
            protocol counts on.
        client_factory: makes a pymemcache client from (server, connect_timeout, timeout), for
            TLS and the like. It must not retry by itself.
        clock: ours, to compare with the server's.

    Raises:
        ValueError: an address, prefix or protocol that cannot be one.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:11211",
        *,
        prefix: str = "userlock",
        connect_timeout: float = CONNECT_TIMEOUT,
        timeout: float = REPLY_TIMEOUT,
        via_proxy: bool = False,
        protocol: str | None = None,
        client_factory: ClientFactory = plain_client,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if protocol not in (None, "meta", "text"):
            raise ValueError(f"protocol must be 'meta', 'text' or None, not {protocol!r}")
        host, port = split_address(address)
        #: In full, so that all processes that name this server spread locks alike.
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._keys = KeySpace(prefix)
        self._via_proxy = via_proxy
        self._connections = Connections(
            host,
            port,
            connect_timeout=connect_timeout,
            timeout=timeout,
            client_factory=client_factory,
            protocol=protocol,
            tells_time=not via_proxy,
            clock=clock,
        )

    # --- the verbs --------------------------------------------------------------------------

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        key = self._keys.lock(lock_id)
        connection = None
        try:
            connection = self._connections.take_in_time(checked=False)
            cas = connection.dialect.create(connection, key, record, ttl_seconds)
        except BaseException as error:
            self._broken(connection, error)
            raise
        self._connections.give_back(connection)
        return None if cas is None else self._version(cas, record, key)

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        key = self._keys.lock(lock_id)
        for last in (False, True):
            connection = None
            try:
                connection = (
                    self._connections.make(HURRY_TIMEOUT)
                    if hurry
                    else self._connections.take(checked=False)  # it can be sent again
                )
                item = connection.dialect.read(connection, key)
            except BaseException as error:
                if last or hurry or connection is None or not is_a_break(error):
                    self._broken(connection, error)
                    raise
                connection.close()
                self._connections.drop_idle()
            else:
                self._keep(connection, hurry=hurry)
                return self._stored(item, key)
        raise AssertionError("unreachable")

    def swap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        key = self._keys.lock(lock_id)
        connection = None
        try:
            connection = self._connections.take_in_time()
            cas = self._cas_of(connection, key, version)
            new = None
            if cas is not None:
                new = connection.dialect.swap(connection, key, cas, record, ttl_seconds)
        except BaseException as error:
            self._broken(connection, error)
            raise
        self._connections.give_back(connection)
        return None if new is None else self._version(new, record, key)

    def swap_many(self, swaps: Sequence[Swap]) -> list[object | StoreUnavailable | None]:
        """As `BatchStore.swap_many`: one packet; two after the connection was made anew, or
        behind a proxy. By the text protocol, one after another."""
        outcomes: list[object | StoreUnavailable | None] = []
        connection = None
        try:
            connection = self._connections.take_in_time()
            for outcome in self._swap_each(connection, swaps):
                outcomes.append(outcome)  # each by itself: those before a break are known
            connection.finish()
        except BaseException as error:
            try:
                self._broken(connection, error)
            except StoreUnavailable as trouble:
                return outcomes + [trouble] * (len(swaps) - len(outcomes))
            raise
        self._connections.give_back(connection)
        return outcomes

    def _swap_each(self, connection: Connection, swaps: Sequence[Swap]) -> Iterator[object | None]:
        """Return the outcome of each, as the answers come."""
        numbers = self._cas_of_many(connection, [each.version for each in swaps])
        asked = [
            (_own(each.version).key, cas, each.record, each.ttl_seconds)
            for each, cas in zip(swaps, numbers, strict=True)
            if cas is not None
        ]
        answers = connection.dialect.swaps(connection, asked)
        for each, cas in zip(swaps, numbers, strict=True):
            new = None if cas is None else next(answers)
            key = _own(each.version).key
            yield None if new is None else self._version(new, each.record, key)

    def rewrite(self, lock_id: str, version: object, record: bytes) -> object | None:
        """As `RewritingStore.rewrite`. Not with the text protocol, which tells no times.

        memcached counts in whole seconds of its own: if one ends between look
        and change, the record stays for that second longer.
        """
        key = self._keys.lock(lock_id)
        connection = None
        new = None
        try:
            connection = self._connections.take()
            item = connection.dialect.read(connection, key)
            cas = self._cas_if_unchanged(item, _own(version))
            if item is not None and item.remaining and cas is not None:
                new = connection.dialect.rewrite(connection, key, cas, record, item.remaining)
        except BaseException as error:
            self._broken(connection, error)
            raise
        self._connections.give_back(connection)
        return None if new is None else self._version(new, record, key)

    def remove(self, lock_id: str, version: object) -> bool:
        assert isinstance(version, _Version), "a version of another store"
        key = version.key
        connection = None
        try:
            connection = self._connections.take()
            if self._trusts(connection, version):
                cas: int | None = version.cas
            else:
                cas = self._cas_of(connection, key, version)
            removed = cas is not None and connection.dialect.remove(connection, key, cas)
        except BaseException as error:
            self._broken(connection, error)
            raise
        self._connections.give_back(connection)
        return removed

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        key = self._keys.lock(lock_id)
        connection = None
        try:
            connection = self._connections.take()
            item = connection.dialect.append(connection, key, line)
        except BaseException as error:
            self._broken(connection, error)
            raise
        self._connections.give_back(connection)
        return self._stored(item, key)

    def close(self) -> None:
        self._connections.drop_idle()

    # --- versions ---------------------------------------------------------------------------

    def _version(self, cas: int, record: bytes, key: bytes) -> _Version:
        # As `_Version(…)`, which would take twice as long to do the same.
        return _new_tuple(_Version, (cas, next(self._connections.sequence), record, key))

    def _stored(self, item: Item | None, key: bytes) -> Stored | None:
        if item is None:
            return None
        lapsed = item.remaining is not None and item.remaining <= GRACE_SECONDS
        return Stored(item.record, self._version(item.cas, item.record, key), lapsed)

    def _trusts(self, connection: Connection, version: _Version) -> bool:
        """Return whether the version's CAS number is still valid on this connection."""
        return connection.made < version.got and version.cas > 0 and not self._via_proxy

    def _cas_of(self, connection: Connection, key: bytes, version: object) -> int | None:
        """Return the CAS number to use for a version; None when the record is not of it any more.

        Look and change go over one connection. Were the server restarted in
        between, the connection would break, and the change fail.
        """
        version = _own(version)
        if self._trusts(connection, version):
            return version.cas
        return self._cas_if_unchanged(connection.dialect.read(connection, key), version)

    def _cas_of_many(self, connection: Connection, versions: Sequence[object]) -> list[int | None]:
        """Return the same for many: those that cannot be trusted are read together."""
        mine = [_own(version) for version in versions]
        doubtful = [version for version in mine if not self._trusts(connection, version)]
        items = connection.dialect.reads(connection, [version.key for version in doubtful])
        return [
            version.cas
            if self._trusts(connection, version)
            else self._cas_if_unchanged(next(items), version)
            for version in mine
        ]

    @staticmethod
    def _cas_if_unchanged(item: Item | None, version: _Version) -> int | None:
        """Return the number to use for a version that is not trusted, seeing what is stored now."""
        if item is None or item.record != version.record:
            return None
        # A holder that extends its lease writes the same record again, which
        # the number tells where it is known. After a restart the same record
        # cannot be there by chance: it carries the random token of its owner.
        return item.cas if version.cas in (0, item.cas) else None

    # --- connections ------------------------------------------------------------------------

    def _keep(self, connection: Connection, *, hurry: bool) -> None:
        if hurry:
            connection.close()  # its time-out is not the usual one
        else:
            self._connections.give_back(connection)

    def _broken(self, connection: Connection | None, error: BaseException) -> None:
        """Close the connection after an error in the middle of an exchange, or in making one.

        A reply may still be on its way, and would be taken for the next command's.

        Raises:
            StoreUnavailable: it was trouble with the server.
        """
        if connection is not None:
            connection.close()
        if isinstance(error, (*TROUBLE, Refused)):
            self._connections.drop_idle()
            raise self._unavailable(error, sent=connection is not None) from error

    def _unavailable(self, error: Exception, *, sent: bool) -> StoreUnavailable:
        # What is in between may go on by itself after it has hung up on us.
        slow = isinstance(error, SLOW) or (sent and self._via_proxy)
        # The kernel's own time-out has another text; a look-up's says what was looked up.
        timed_out = isinstance(error, BlockingIOError)
        what = "timed out" if timed_out else str(error) or type(error).__name__
        if isinstance(error, MemcacheError) and not str(error):
            what = "the server closed the connection"
        return StoreUnavailable(f"memcached at {self.address}: {what}", sent=sent, slow=slow)


def _own(version: object) -> _Version:
    assert isinstance(version, _Version), "a version of another store"
    return version
