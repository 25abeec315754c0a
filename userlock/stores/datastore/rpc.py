"""The two RPCs that rows need, each outside of any transaction, with a time-out.

They go to the stub that an `ndb.Client` has (a public attribute of it), and so
past everything in ndb: no context, no event loop, no cache, no hooks, no
retries, and no transaction of the caller's, which only takes part in what
names it.

A reply never answers another's request: each RPC is a stream of its own.

Sources: google.datastore.v1 datastore.proto (`Mutation`, `MutationResult`);
https://cloud.google.com/datastore/docs/concepts/errors (what to do about which
error); https://github.com/grpc/grpc/blob/master/doc/fork_support.md.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlencode

import grpc
from google.cloud.datastore_v1.types import datastore as datastore_types

from userlock.clock import Clock
from userlock.lock.store import StoreUnavailable
from userlock.stores.datastore.rows import Key, Row, read_row

#: For one RPC, connecting included: Datastore has slow moments, and a first RPC needs a token.
TIMEOUT = 2.0
#: For the one RPC of a `read` in a hurry.
HURRY_TIMEOUT = 0.5

_FIRST_DELAY = 0.02
_MOST_DELAY = 0.5

Mutation: Any = datastore_types.Mutation.pb()
_LookupRequest: Any = datastore_types.LookupRequest.pb()
_CommitRequest: Any = datastore_types.CommitRequest.pb()

_ADVICE = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the project is over its quota: see Quotas in the console",
    grpc.StatusCode.PERMISSION_DENIED: "the service account needs the role roles/datastore.user",
    grpc.StatusCode.UNAUTHENTICATED: "the credentials are not valid (any more)",
    grpc.StatusCode.NOT_FOUND: "there is no such database: check project and database id",
    grpc.StatusCode.FAILED_PRECONDITION: "the database must be in Datastore mode",
    grpc.StatusCode.INVALID_ARGUMENT: "Datastore does not take the request as it is",
}
# What is no trouble: the row is not as the mutation expects.
_DOES_NOT_FIT = {
    ("insert", grpc.StatusCode.ALREADY_EXISTS),
    ("update", grpc.StatusCode.NOT_FOUND),
}
# Words of gRPC's own for an RPC that did not leave this process: there was no
# connection, or no credentials to go with it.
_NOT_SENT = (
    "failed to connect to all addresses",
    "DNS resolution failed",
    "Getting metadata from plugin failed",
)
# Words of gRPC's own in a forked child, for an RPC that was given a connection of
# the parent's: sockets have generations, and nothing is written to one of before
# the fork. Channels share connections, and a new one gets the parent's too until
# the child has noticed that they are gone, which it may do by this very RPC.
_FOR_PARENTS_CONNECTION = ("wrong file descriptor generation", "closed on fork")


class ConnectionBroken(StoreUnavailable):
    """UNAVAILABLE: the connection ended, or the server is going away. Worth another try."""


class Aborted(StoreUnavailable):
    """ABORTED: another commit was in the way, and nothing was done. Worth another try."""


class _Refused(StoreUnavailable):
    """The server answered with another error than those above."""

    def __init__(self, reason: str, code: grpc.StatusCode) -> None:
        super().__init__(reason)
        self.code = code


class Patience:
    """The time-outs of a verb: so long for each RPC, and twice as long for all of them.

    Args:
        clock: to look at, and to sleep by.
        timeout: for an RPC, in seconds.

    Attributes:
        asked: whether one of its RPCs may have reached the server.
    """

    def __init__(self, clock: Clock, timeout: float) -> None:
        self.asked = False
        self._clock = clock
        self._timeout = timeout
        self._ends = clock.now() + 2 * timeout
        self._delay = _FIRST_DELAY

    def for_rpc(self) -> float:
        """Return the time-out of an RPC that begins now, in seconds."""
        return max(min(self._timeout, self._ends - self._clock.now()), 0.001)

    def wait_or_raise(self, trouble: StoreUnavailable) -> None:
        """Wait a little before another try; raise `trouble` if there is no time for one.

        With full jitter, so that those who met once do not meet again.
        """
        delay = random.uniform(0, self._delay)
        self._delay = min(2 * self._delay, _MOST_DELAY)
        if self._clock.now() + delay + self._timeout / 4 > self._ends:
            raise trouble
        self._clock.sleep(delay)


class _Connection(NamedTuple):
    """A client, and what its requests have in common."""

    client: Any
    project: str
    database: str
    namespace: str
    metadata: tuple[tuple[str, str], ...]


class Rpc:
    """Lookup and Commit of single rows. Thread-safe; survives fork with a factory.

    Args:
        client: an `ndb.Client` (or whatever has its `stub`, `project`, `database` and
            `namespace`), or None.
        client_factory: makes one when it is needed, in each process that needs one.
        namespace: None for the client's.
    """

    def __init__(
        self, client: Any, client_factory: Callable[[], Any], namespace: str | None
    ) -> None:
        self._given = client
        self._factory = client_factory
        self._namespace = namespace
        self._connection: _Connection | None = None
        self._lock = threading.Lock()
        self._inherited = False
        _all.add(self)

    def start_again_after_fork(self) -> None:
        """In a forked child: a channel of its own; a thread of the parent may hold the lock."""
        used = self._connection is not None or self._given is not None
        self._inherited = self._inherited or used
        self._connection = None
        self._lock = threading.Lock()

    # --- RPCs -------------------------------------------------------------------------------

    def look_up(self, kind: str, name: str, patience: Patience) -> tuple[Any, Row | None]:
        """Return the key of a row, and the row as it is now; None where there is none."""
        connection = self._connected(patience)
        key = _key(connection, kind, name)
        request = _LookupRequest(
            project_id=connection.project, database_id=connection.database, keys=[key]
        )
        # Said aloud because a stale answer would show a lock as free.
        request.read_options.read_consistency = datastore_types.ReadOptions.ReadConsistency.STRONG
        wrapped = datastore_types.LookupRequest.wrap(request)
        response = self._again_if_broken(connection, "lookup", wrapped, patience)
        reply: Any = datastore_types.LookupResponse.pb(response)
        if reply.deferred:
            raise StoreUnavailable(f"{_where(connection)} put the lookup of {name!r:.100} off")
        if not reply.found:
            return key, None
        try:
            return key, read_row(reply.found[0], reply.read_time)
        except ValueError as error:
            raise StoreUnavailable(
                f"{_where(connection)}: {kind} {name!r:.100}: {error}"
            ) from error

    def key(self, kind: str, name: str, patience: Patience) -> Any:
        """Return the key of a row."""
        return _key(self._connected(patience), kind, name)

    def commit(self, mutation: Any, patience: Patience) -> Any | None:
        """Apply one mutation; its `MutationResult`, or None when the row is not as it expects.

        In a commit of its own that is no transaction. A single mutation is
        atomic without one, and the server compares the version while it
        applies it: that is the conditional UPDATE, without a transaction to
        begin. It would wait for a transaction that has read the row; none does.

        ABORTED is contention with another commit, and nothing was done: tried
        again while there is time (see "Error codes", ABORTED, for
        non-transactional commits).
        """
        connection = self._connected(patience)
        request = _CommitRequest(
            project_id=connection.project,
            database_id=connection.database,
            mode=datastore_types.CommitRequest.Mode.NON_TRANSACTIONAL,
            mutations=[mutation],
        )
        wrapped = datastore_types.CommitRequest.wrap(request)
        while True:
            try:
                response = self._call(connection, "commit", wrapped, patience)
                break
            except Aborted as trouble:
                patience.wait_or_raise(trouble)
            except _Refused as trouble:
                if (mutation.WhichOneof("operation"), trouble.code) in _DOES_NOT_FIT:
                    return None
                raise
        result = datastore_types.CommitResponse.pb(response).mutation_results[0]
        return None if result.conflict_detected else result

    def close(self) -> None:
        """Close the channel, if it is our own; the next RPC opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None and self._given is None:
            connection.client.stub.close()

    # --- how they are made ------------------------------------------------------------------

    def _again_if_broken(
        self, connection: _Connection, method: str, request: Any, patience: Patience
    ) -> Any:
        try:
            return self._call(connection, method, request, patience)
        except (Aborted, ConnectionBroken) as trouble:
            patience.wait_or_raise(trouble)
        return self._call(connection, method, request, patience)

    def _call(self, connection: _Connection, method: str, request: Any, patience: Patience) -> Any:
        rpc = getattr(connection.client.stub, method)
        while True:
            try:
                reply = rpc(request, timeout=patience.for_rpc(), metadata=connection.metadata)
            except grpc.RpcError as error:
                patience.asked = patience.asked or not _stayed_here(error)
                trouble = _translated(error, connection, method, sent=patience.asked)
                if not _for_parents_connection(error):
                    raise trouble from error
                patience.wait_or_raise(trouble)
                continue
            except ValueError as error:  # a channel that was closed
                reason = f"{_where(connection)}: {error}"
                raise StoreUnavailable(reason, sent=patience.asked) from error
            patience.asked = True
            return reply

    def _connected(self, patience: Patience) -> _Connection:
        connection = self._connection
        if connection is not None:
            return connection
        if self._inherited and _forks_badly():
            # An RPC would hang, whatever its time-out and however new its channel.
            raise StoreUnavailable(
                "datastore: this process was forked from one that had used gRPC, whose support "
                "for that is off: set GRPC_ENABLE_FORK_SUPPORT=1, or fork before locks are used",
                sent=patience.asked,
            )
        with self._lock:
            if self._connection is None:
                try:
                    self._connection = self._connect()
                except Exception as error:  # no project, no credentials
                    reason = f"datastore: no client: {error}"
                    raise StoreUnavailable(reason, sent=patience.asked) from error
            return self._connection

    def _connect(self) -> _Connection:
        client = self._factory() if self._given is None else self._given
        database = client.database or ""
        if database == "(default)":
            database = ""  # as the RPCs want it
        namespace = client.namespace if self._namespace is None else self._namespace
        # Without it, requests for a named database do not find their way.
        routing = urlencode({"project_id": client.project, "database_id": database})
        metadata = (("x-goog-request-params", routing),)
        return _Connection(client, client.project, database, namespace or "", metadata)


def _key(connection: _Connection, kind: str, name: str) -> Any:
    key = Key()
    partition = key.partition_id
    partition.project_id = connection.project
    partition.database_id = connection.database
    partition.namespace_id = connection.namespace
    key.path.add(kind=kind, name=name)
    return key


def _where(connection: _Connection) -> str:
    return f"datastore {connection.project}/{connection.database or '(default)'}"


def _stayed_here(error: Any) -> bool:
    """Return whether the RPC was certainly not sent: the local gRPC says so, not a server."""
    return _for_parents_connection(error) or (
        error.code() is grpc.StatusCode.UNAVAILABLE
        and not error.trailing_metadata()
        and (error.details() or "").startswith(_NOT_SENT)
    )


def _for_parents_connection(error: Any) -> bool:
    """Return whether the RPC used a connection that did not survive a fork."""
    codes = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    if error.trailing_metadata() or error.code() not in codes:
        return False
    details = (error.details() or "").lower()
    return any(words in details for words in _FOR_PARENTS_CONNECTION)


def _translated(
    error: Any, connection: _Connection, method: str, *, sent: bool
) -> StoreUnavailable:
    """Return the error as the lock service knows it."""
    code = error.code()
    reason = f"{_where(connection)}: {method}: {code.name}: {error.details() or '':.300}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return StoreUnavailable(reason, slow=True)
    if code is grpc.StatusCode.ABORTED:
        return Aborted(reason)
    if code is grpc.StatusCode.UNAVAILABLE or _for_parents_connection(error):
        # Behind a front end, the end of a connection is not the end of the commit.
        return ConnectionBroken(reason, sent=sent, slow=not _stayed_here(error))
    advice = _ADVICE.get(code)
    return _Refused(reason if advice is None else f"{reason} ({advice})", code)


def _forks_badly() -> bool:
    """Return whether gRPC's support for forks is switched off. By default it is on."""
    return os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "1").lower() in ("0", "false", "no")


_all: weakref.WeakSet[Rpc] = weakref.WeakSet()


def _forget_parents_channels() -> None:
    for rpc in list(_all):
        rpc.start_again_after_fork()


os.register_at_fork(after_in_child=_forget_parents_channels)
