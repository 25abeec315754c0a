"""Leases in Google Cloud Datastore: a row per lock, changed by compare and swap.

Two commits a lock cost more than two commands to memcached, but a granted lock stays granted,
whatever is evicted or restarted. A mutation that names the version it was decided on
(`base_version`) is skipped when the row has another, so no transaction has to be begun and held:

    verb     RPCs (1 round trip each)                  None when
    create   insert                                    ALREADY_EXISTS, and the row lives
             and, where there is a row: lookup; if it is dead: update by its version
    read     lookup; if it is dead: delete by its      missing, or dead
             version
    swap     update, by version                        conflict, NOT_FOUND
    remove   delete, by version                        conflict
    append   as read, then update by version;          missing, or dead
             all again while others were faster

It never takes part in a transaction, and needs no ndb context (`userlock.datastore_rpc`). Time is
Datastore's alone (`rows`). A lease ends at its time to live plus 0.05 s and a thousandth, because
clocks run at different rates. A version is the row's for ever, so a change decided on an old one is
refused, also after the row was created again.

Limits:
- At most 32 RPCs of a process are under way; others wait for their turn, which is no outage.
- A lock with dozens of waiters belongs in memcached: Datastore slows down when one row is written
  many times a second. At 50 ms a round trip, measured with the emulator, 20 appends that begin at
  once are all in after 2 s, with 11 RPCs each; of 40, one has given up after 4 s.
- A dead row that nobody has read since it died can still be swapped and removed by its version:
  nobody else has had the lock. The first read deletes it.
- If deleting a missing row by its version is no conflict (the documentation does not say), `remove`
  answers True when the row had already gone.
- After a long outage gRPC may wait up to two minutes before it reconnects.
- Fork: with a factory (the default, and for URLs) each process has a client of its own; a client
  that was handed in goes on in the child. Both need gRPC's support for forks where gRPC was used
  before. It is on unless GRPC_ENABLE_FORK_SUPPORT is 0 (measured on grpcio 1.85), and does not work
  while another thread has an RPC under way. Where it is off, verbs raise `StoreUnavailable`.

Dead rows stay until the next read of the lock. A policy on `expire_at`, set once for each kind,
sweeps them a day after the end of the lease by its taker's clock (not in the mode optimistic with
entity groups; see https://cloud.google.com/datastore/docs/ttl):

    gcloud firestore fields ttls update expire_at \\
        --collection-group=UserLockLease --enable-ttl --database='(default)'
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import SplitResult

from google.cloud import ndb

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.datastore_rpc import Mutation
from userlock.lock.store import RecordBusy, Stored, StoreUnavailable
from userlock.stores.datastore import rows
from userlock.stores.datastore.rows import DEFAULT_KIND, Row, check_kind, check_prefix, row_name
from userlock.stores.datastore.rpc import TIMEOUT, Calls, Channel, ConnectionBroken
from userlock.stores.pool import Turns
from userlock.stores.stream import Place
from userlock.stores.urls import SECONDS, AddressError, options_of
from userlock.stores.verbs import WaitingStore
from userlock.waits import run

#: Options of URLs. With an id that Datastore refuses, every lock would be degraded.
_FORMS = {
    "database": (r"(\(default\)|[a-zA-Z0-9-]{1,63})?", "an id of letters, digits and hyphens"),
    "namespace": (r"(?!__.*__$)[a-zA-Z0-9._-]{0,100}", "letters, digits and . _ -, not __…__"),
    "timeout": SECONDS,
}
#: The longest time-out that a URL may name.
_MOST_SECONDS = 60
#: For making the client where nobody else waits.
_CONNECT_SECONDS = 30.0
#: How many rows a query reads at once.
_BATCH = 300


class DatastoreStore(WaitingStore):
    """A lease store in Datastore. Thread-safe; survives fork (see above).

    Args:
        client: an `ndb.Client`, whose connection is shared; no context of it is used.
        client_factory: makes an `ndb.Client`, in each process that needs one. Without both,
            `ndb.Client()` is called, which takes all from the environment.
        prefix: begins every row's name, so that deployments can share a database.
        kind: of the rows.
        namespace: of the rows; None for the client's.
        timeout: for one RPC, connecting included, in seconds. A verb that needs several, or
            tries again, takes at most twice as long; a `read` in a hurry a quarter of it.
        clock: for time-outs and waiting, and `expire_at`.
    """

    #: Versions of rows, which Datastore never uses again.
    fences = True
    #: More that change one row at once are in each other's way for seconds.
    most_queued = 8

    def __init__(
        self,
        client: Any = None,
        *,
        client_factory: Callable[[], Any] | None = None,
        prefix: str = "userlock",
        kind: str = DEFAULT_KIND,
        namespace: str | None = None,
        timeout: float = TIMEOUT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if client is not None and client_factory is not None:
            raise TypeError("give a client or a client_factory, not both")
        if timeout <= 0:
            raise ValueError("time-outs must be more than 0 seconds")
        self.timeout = timeout
        self._prefix = check_prefix(prefix)
        self._clock = clock
        self._kind = check_kind(kind)
        self._channel = Channel(client, client_factory or ndb.Client, namespace)
        self._turns = Turns[Place]()

    @classmethod
    def of_parts(cls, parts: SplitResult) -> DatastoreStore:
        """Return the store that a URL names; other parts as `ndb.Client` finds them, when used."""
        defaults = {"prefix": "userlock", "kind": DEFAULT_KIND, "timeout": f"{TIMEOUT}"}
        options: Any = options_of(parts, forms=_FORMS, database="", namespace="", **defaults)
        if parts.path or "@" in parts.netloc:
            raise AddressError("it must look like datastore://PROJECT?database=DB&prefix=NAME")
        options["timeout"] = float(options["timeout"])
        if options["timeout"] > _MOST_SECONDS:
            raise AddressError(f"timeout must be at most {_MOST_SECONDS} seconds")
        # None: as the environment says, or the default one.
        place = {name: options.pop(name) or None for name in ("database", "namespace")}
        client = functools.partial(ndb.Client, project=parts.netloc or None, **place)
        return cls(client_factory=client, **options)

    async def acreate(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        calls = await self._calls(lock_id)
        entity = rows.fresh(record, ttl_seconds, self._clock.wall()).entity(calls.key)
        result = await calls.commit(Mutation(insert=entity))
        if result is None:
            row = await calls.look_up()
            if row is None or not row.gone:
                return None
            # The fastest here, be it another `create`, wins by the version.
            result = await calls.commit(Mutation(update=entity, base_version=row.version))
        return None if result is None else result.version

    async def aread(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        row = await _living(await self._calls(lock_id, hurry=hurry))
        return None if row is None else row.stored

    async def aswap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        if not _is_version(version):
            return None
        calls = await self._calls(lock_id)
        entity = rows.fresh(record, ttl_seconds, self._clock.wall()).entity(calls.key)
        result = await calls.commit(Mutation(update=entity, base_version=version))
        return None if result is None else result.version

    async def aremove(self, lock_id: str, version: object) -> bool:
        if not _is_version(version):
            return False
        calls = await self._calls(lock_id)
        return await calls.commit(Mutation(delete=calls.key, base_version=version)) is not None

    async def aappend(self, lock_id: str, line: bytes) -> Stored | None:
        # After a broken connection the write id of the row tells whether that was done. If another
        # write came since, the line is appended again to a row in the same life.
        calls, write_id = await self._calls(lock_id), rows.new_write_id()
        in_doubt: tuple[Row, ConnectionBroken] | None = None
        while True:
            row = await _living(calls)
            if in_doubt is not None and (row is None or row.began != in_doubt[0].began):
                raise in_doubt[1]
            if row is None:
                return None
            if row.write_id == write_id:
                return row.stored
            longer = row._replace(record=row.record + line, write_id=write_id)
            update = Mutation(update=longer.entity(calls.key), base_version=row.version)
            try:
                result = await calls.commit(update)
            except ConnectionBroken as trouble:
                if in_doubt is not None:
                    raise
                in_doubt = row, trouble
                await calls.wait_or_raise(trouble)
                continue
            if result is not None:
                # Datastore's time as of the commit, if reported.
                now = max(row.now, result.update_time.ToMicroseconds())
                return longer._replace(version=result.version, now=now).stored
            await calls.wait_or_raise(RecordBusy("datastore: others were faster to change the row"))

    def close(self) -> None:
        self._channel.close()

    def connect(self) -> str:
        """Make the client, if there is none yet; return the name of its database.

        For a command line, which can wait: google-auth may have to ask gcloud for the project.
        """
        return run(self._channel.endpoint, _CONNECT_SECONDS).name

    def records(self, limit: int) -> Iterator[tuple[str, bool, Stored]]:
        """Return the locks that have a record: name, whether it is a hash, and the record."""
        for sign, hashed in (("=", False), ("#", True)):
            begin = f"{self._prefix}{sign}"
            # The sign after ours in ASCII: beyond it are other prefixes.
            end = f"{self._prefix}{chr(ord(sign) + 1)}"
            cursor = b""
            while limit > 0:
                batch = run(run(self._calls, "").query, begin, end, min(limit, _BATCH), cursor)
                for result in batch.entity_results:
                    with contextlib.suppress(ValueError):  # not one of ours
                        row = rows.read_row(result, batch.read_time)
                        name: str = result.entity.key.path[-1].name
                        if not row.gone:
                            yield name.removeprefix(begin), hashed, row.stored
                if not batch.entity_results:
                    break
                limit -= len(batch.entity_results)
                cursor = batch.end_cursor

    async def _calls(self, lock_id: str, *, hurry: bool = False) -> Calls:
        timeout = self.timeout / 4 if hurry else self.timeout
        name = row_name(self._prefix, lock_id)
        parts = await self._channel.endpoint(), self._turns, self._kind, name
        return Calls(*parts, self._clock, timeout, hurry=hurry)


async def _living(calls: Calls) -> Row | None:
    """Return the row; None when there is none, or it is dead: then it is deleted.

    So its former holder cannot prolong it any more. Where that fails, `create` finds the row.
    """
    row = await calls.look_up()
    if row is None or not row.gone:
        return row
    with contextlib.suppress(StoreUnavailable):
        await calls.commit(Mutation(delete=calls.key, base_version=row.version))
    return None


def _is_version(version: object) -> bool:
    """Return False for None and 0: a mutation with those would be carried out in any case."""
    return isinstance(version, int) and version > 0
