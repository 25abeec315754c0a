"""Leases in memcached, by the meta protocol (memcached 1.6) through pymemcache.

What each verb sends, with memcached's answers (doc/protocol.txt of memcached):

    add       ms KEY LEN ME T<ttl> c   create if missing   HD c<cas> | NS
    release   md KEY C<cas>            compare and delete  HD | EX (another's) | NF (gone)
    extend    ms KEY LEN C<cas> T<ttl> compare and swap    HD c<cas> | EX | NF
    announce  ms WAITKEY LEN T3        somebody waits      HD
    read      gets KEY                 who, and the CAS

Why release is safe. CAS numbers begin again at 1 when the server restarts, so
a number alone could name the next owner's item. It is used alone only on a
connection that was made before the grant and has not broken since; a restart
would have cut it. On any other connection the stored token is read first,
and the CAS number that came with it is used, on that same connection:

    we                    memcached                next owner
    ms k … ─────────────▶ HD c1
                          (restarts, empty)
                          HD c1 ◀───────────────── ms k …
    connection is cut
    md k C1 would delete the next owner's lease:
    gets k ─────────────▶ (the next owner's token)
    not ours: lost, and nothing is deleted

Why a lost reply is harmless. After an error in `add` the key is read back on
a fresh connection: our token means the lock is ours. A command that was sent
but not yet carried out may land later still; the service remembers the lease
and deletes it, by token, when the server answers again.

Limits. All this takes a connection to memcached itself; behind a proxy that
reconnects by itself, say `via_proxy`. memcached may evict a live lease under
memory pressure, and forgets all of them on a restart: the lock then does not
exclude, and fencing at the Datastore commit is what refuses the loser's write.
Times to live are whole seconds on a coarse clock, so a lease is stored for up
to two seconds longer than its holder believes in it, never shorter.
"""

from __future__ import annotations

import dataclasses
import math

from pymemcache.exceptions import MemcacheError, MemcacheUnknownCommandError

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.lease import (
    ANNOUNCE_SECONDS,
    Claim,
    Free,
    Granted,
    Held,
    Holder,
    Lease,
    Lost,
    Priority,
    Released,
    Unavailable,
    Yielded,
)
from userlock.stores.memcache.connections import (
    TROUBLE,
    ClientFactory,
    Connection,
    Connections,
    plain_client,
)
from userlock.stores.memcache.keys import KeySpace
from userlock.stores.memcache.url import parse_url, split_address

CONNECT_TIMEOUT = 0.1
REPLY_TIMEOUT = 0.3
#: A reply that took too long costs this much more to look for the lease's token. Together
#: with `REPLY_TIMEOUT`, what a hanging server costs one request before the breaker opens.
READ_BACK_TIMEOUT = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class _Proof:
    """What release needs: the item's CAS number, and when the grant was."""

    cas: int
    grant: int


class _Refused(Exception):
    """The server answered, but not what the protocol says."""


class MemcacheStore:
    """A lease store in one memcached server. Thread-safe; survives fork.

    Args:
        address: `HOST:PORT` of the server.
        prefix: begins every key, so that deployments can share a server. 1 to 80 printable
            ASCII characters.
        connect_timeout: in seconds.
        timeout: for a reply, in seconds.
        via_proxy: there is something in between (mcrouter, twemproxy, Envoy) whose connections
            outlive memcached's. Release then always reads the token first, one round trip more.
        client_factory: makes a pymemcache client from (server, connect_timeout, timeout), for
            TLS and the like. It must not retry by itself.
        clock: for lease deadlines.

    Raises:
        ValueError: an address or prefix that cannot be one.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:11211",
        *,
        prefix: str = "userlock",
        connect_timeout: float = CONNECT_TIMEOUT,
        timeout: float = REPLY_TIMEOUT,
        via_proxy: bool = False,
        client_factory: ClientFactory = plain_client,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        host, port = split_address(address)
        self.address = address
        self._keys = KeySpace(prefix)
        self._clock = clock
        self._via_proxy = via_proxy
        self._connections = Connections(
            host,
            port,
            connect_timeout=connect_timeout,
            timeout=timeout,
            client_factory=client_factory,
        )

    @classmethod
    def from_url(cls, url: str) -> MemcacheStore:
        """The store that `memcache://HOST:PORT?prefix=NAME&via_proxy=no` names.

        Raises:
            ValueError: says what is wrong with the URL.
        """
        address, prefix, via_proxy = parse_url(url)
        return cls(address, prefix=prefix, via_proxy=via_proxy)

    # --- add --------------------------------------------------------------------------------

    def add(
        self, claim: Claim, *, announce: bool = False
    ) -> Granted | Held | Yielded | Unavailable:
        asked_at = self._clock.now()
        try:
            try:
                with self._connections.use() as connection:
                    return self._add(connection, claim, asked_at, announce=announce)
            except TROUBLE as error:
                self._connections.drop_idle()
                return self._read_back(claim, asked_at, error)
        except (*TROUBLE, _Refused) as error:
            return self._unavailable(error)

    def _add(
        self, connection: Connection, claim: Claim, asked_at: float, *, announce: bool
    ) -> Granted | Held | Yielded:
        record = claim.holder.encode()
        create = b"ms %b %d T%d c ME\r\n%b" % (
            self._keys.lock(claim.lock_id),
            len(record),
            _whole_seconds(claim.ttl_seconds),
            record,
        )
        if claim.priority is Priority.BATCH:
            # One trip more, and only for batch: nobody is made to wait for
            # what is probably not there.
            if connection.command(b"mg %b" % self._keys.waiting(claim.lock_id)) == b"HD":
                return Yielded()
            reply = connection.command(create)
        elif announce:
            token = claim.token.encode()
            say_so = b"ms %b %d T%d\r\n%b\r\n" % (
                self._keys.waiting(claim.lock_id),
                len(token),
                _whole_seconds(ANNOUNCE_SECONDS),
                token,
            )
            # Both in one trip; the empty command tells where the replies end.
            both = connection.command(say_so + create + b"\r\nmn", b"MN\r\n")
            reply = both.split(b"\r\n")[1]
        else:
            reply = connection.command(create)
        if reply.startswith(b"HD"):
            cas = _cas(reply)
            if cas == 0:
                # Created, but nothing could ever delete it safely.
                connection.command(b"md %b" % self._keys.lock(claim.lock_id))
                raise _Refused("memcached runs without CAS (option -C), so it cannot hold locks")
            return self._granted(claim, cas, asked_at)
        if reply.startswith(b"NS"):
            return Held(None)
        raise _Refused(f"memcached answered {reply[:80]!r}")

    def _granted(self, claim: Claim, cas: int, asked_at: float) -> Granted:
        return Granted(
            Lease(
                lock_id=claim.lock_id,
                token=claim.token,
                # Counted from before the question, so that ours ends first.
                deadline=asked_at + claim.ttl_seconds,
                ttl_seconds=claim.ttl_seconds,
                proof=_Proof(cas, next(self._connections.sequence)),
            )
        )

    def _read_back(
        self, claim: Claim, asked_at: float, error: Exception
    ) -> Granted | Held | Yielded:
        """The reply to an add was lost: find out whether the lock is ours.

        Also where a connection turns out dead that stood idle while the
        server was restarted; then the add is simply sent again. That is safe
        at any time: it carries the same token.
        """
        key = self._keys.lock(claim.lock_id)
        slow = isinstance(error, TimeoutError)
        with self._connections.use(
            fresh=True, timeout=READ_BACK_TIMEOUT if slow else None
        ) as connection:
            found = self._look_for(connection, key, claim, asked_at)
            if found is not None:
                return found
            again = self._add(connection, claim, asked_at, announce=False)
            if isinstance(again, Held):
                # It may be the first add, landed just now, that stands in the way.
                return self._look_for(connection, key, claim, asked_at) or again
            if isinstance(again, Granted) and slow:
                # The first add may still be on its way, and land after the release.
                return Granted(dataclasses.replace(again.lease, unsettled=True))
            return again

    def _look_for(
        self, connection: Connection, key: bytes, claim: Claim, asked_at: float
    ) -> Granted | Held | None:
        """Whose the lock is, by the stored token; None when nothing is stored."""
        record, cas = connection.gets(key)
        if record is None:
            return None
        holder = Holder.decode(record)
        if holder.token == claim.token and cas:
            return self._granted(claim, cas, asked_at)
        return Held(holder)

    # --- release and extend -----------------------------------------------------------------

    def release(self, lease: Lease) -> Released | Lost | Unavailable:
        key = self._keys.lock(lease.lock_id)
        sent = False
        try:
            try:
                with self._connections.use() as connection:
                    proof = lease.proof
                    if (
                        isinstance(proof, _Proof)
                        and connection.older_than(proof.grant)
                        and not self._via_proxy
                    ):
                        sent = True
                        reply = connection.command(b"md %b C%d" % (key, proof.cas))
                        if reply.startswith(b"EX"):
                            # Changed since: by its next owner, or by our own extend.
                            return self._release_by_token(connection, key, lease)
                        return self._released(reply)
                    return self._release_by_token(connection, key, lease)
            except TROUBLE as error:
                self._connections.drop_idle()
                slow = isinstance(error, TimeoutError)
                with self._connections.use(
                    fresh=True, timeout=READ_BACK_TIMEOUT if slow else None
                ) as connection:
                    outcome = self._release_by_token(connection, key, lease)
                if sent and outcome == Lost(None):
                    return Released()  # the delete whose reply was lost did its work
                return outcome
        except (*TROUBLE, _Refused) as error:
            return self._unavailable(error)

    def _release_by_token(
        self, connection: Connection, key: bytes, lease: Lease
    ) -> Released | Lost:
        """Delete the lease if the stored token is ours.

        Look and delete go over one connection. Were the server restarted in
        between, the connection would break and the delete raise unsent: a
        connection is made anew only after it was closed, which raises first.
        """
        record, cas = connection.gets(key)
        if record is None:
            return Lost(None)
        holder = Holder.decode(record)
        if holder.token != lease.token or cas == 0:
            return Lost(holder)
        return self._released(connection.command(b"md %b C%d" % (key, cas)))

    @staticmethod
    def _released(reply: bytes) -> Released | Lost:
        if reply.startswith(b"HD"):
            return Released()
        if reply.startswith((b"NF", b"EX")):
            return Lost(None)  # it ended between the look and the delete
        raise _Refused(f"memcached answered {reply[:80]!r}")

    def extend(self, lease: Lease, ttl_seconds: float) -> Granted | Lost | Unavailable:
        key = self._keys.lock(lease.lock_id)
        asked_at = self._clock.now()
        try:
            with self._connections.use() as connection:
                # The record is stored again as it was found: by token, then
                # by the CAS number that came with it.
                record, cas = connection.gets(key)
                if record is None:
                    return Lost(None)
                holder = Holder.decode(record)
                if holder.token != lease.token or cas == 0:
                    return Lost(holder)
                reply = connection.command(
                    b"ms %b %d T%d C%d c\r\n%b"
                    % (key, len(record), _whole_seconds(ttl_seconds), cas, record)
                )
                if reply.startswith(b"HD"):
                    return Granted(
                        dataclasses.replace(
                            lease,
                            deadline=asked_at + ttl_seconds,
                            ttl_seconds=ttl_seconds,
                            degraded=False,
                            proof=_Proof(_cas(reply), next(self._connections.sequence)),
                        )
                    )
                if reply.startswith((b"NF", b"EX")):
                    return Lost(None)  # it ended between the look and the swap
                raise _Refused(f"memcached answered {reply[:80]!r}")
        except (*TROUBLE, _Refused) as error:
            self._connections.drop_idle()
            return self._unavailable(error)

    # --- the rest ---------------------------------------------------------------------------

    def read(self, lock_id: str) -> Held | Free | Unavailable:
        try:
            try:
                with self._connections.use() as connection:
                    record, _ = connection.gets(self._keys.lock(lock_id))
            except TROUBLE as error:
                self._connections.drop_idle()
                if isinstance(error, TimeoutError):
                    raise
                with self._connections.use(fresh=True) as connection:
                    record, _ = connection.gets(self._keys.lock(lock_id))
        except TROUBLE as error:
            return self._unavailable(error)
        return Free() if record is None else Held(Holder.decode(record))

    def withdraw(self, claim: Claim) -> None:
        if claim.priority is Priority.BATCH:
            return  # batch announces nothing
        key = self._keys.waiting(claim.lock_id)
        try:
            with self._connections.use() as connection:
                token, cas = connection.gets(key)
                if token == claim.token.encode() and cas:
                    connection.command(b"md %b C%d" % (key, cas))
        except TROUBLE:
            # It ends by itself in two seconds; who else waits says so again
            # with every poll.
            self._connections.drop_idle()

    def close(self) -> None:
        self._connections.drop_idle()

    def _unavailable(self, error: Exception) -> Unavailable:
        what = str(error) or type(error).__name__
        if isinstance(error, MemcacheUnknownCommandError):
            what = "it does not know the meta commands; userlock needs memcached 1.6 or later"
        elif isinstance(error, MemcacheError) and not str(error):
            what = "the server closed the connection"
        return Unavailable(f"memcached at {self.address}: {what}")


def _whole_seconds(ttl_seconds: float) -> int:
    """A time to live that memcached, whose clock ticks in seconds, does not cut short.

    `T1` was seen to end after 0.6 s, so one second more than needed, and
    rounded up: 0 would mean for ever.
    """
    return math.ceil(ttl_seconds) + 1


def _cas(reply: bytes) -> int:
    if reply[:4] == b"HD c" and reply[4:].isdigit():
        return int(reply[4:])
    for flag in reply.split()[1:]:
        if flag.startswith(b"c"):
            return int(flag[1:])
    raise _Refused(f"memcached answered {reply[:80]!r} without a CAS number")
