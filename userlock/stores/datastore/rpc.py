"""Requests for rows, each outside of any transaction, with a time-out; errors and retries.

A reply never answers another's request: each RPC is a stream of its own.

Sources: https://cloud.google.com/datastore/docs/concepts/errors (how to react to which error);
https://github.com/grpc/grpc/blob/master/doc/fork_support.md.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.cloud.datastore_v1.types import query as query_types

from userlock.clock import Clock
from userlock.datastore_rpc import Endpoint, Query
from userlock.fork import reset_in_child
from userlock.lock.store import StoreUnavailable
from userlock.stores.datastore.rows import Row, read_row

#: For one RPC, connecting included: Datastore has slow moments, and a first RPC needs a token.
TIMEOUT = 2.0
#: For the one RPC of a `read` in a hurry.
HURRY_TIMEOUT = 0.5

_FIRST_DELAY = 0.02
_MOST_DELAY = 0.5
_BATCH = 300

_PropertyFilter: Any = query_types.PropertyFilter
_CompositeFilter: Any = query_types.CompositeFilter

_ADVICE = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the project is over its quota: see Quotas in the console",
    grpc.StatusCode.PERMISSION_DENIED: "the service account needs the role roles/datastore.user",
    grpc.StatusCode.UNAUTHENTICATED: "the credentials are not valid (any more)",
    grpc.StatusCode.NOT_FOUND: "there is no such database: check project and database id",
    grpc.StatusCode.FAILED_PRECONDITION: "the database must be in Datastore mode",
    grpc.StatusCode.INVALID_ARGUMENT: "Datastore does not take the request as it is",
}
# No trouble, but a row that is not as the mutation expects.
_DOES_NOT_FIT = {
    ("insert", grpc.StatusCode.ALREADY_EXISTS),
    ("update", grpc.StatusCode.NOT_FOUND),
}
# gRPC's words for an RPC that did not leave this process: there was no connection,
# or no credentials to go with it.
_NOT_SENT = (
    "failed to connect to all addresses",
    "DNS resolution failed",
    "Getting metadata from plugin failed",
)
# gRPC's words in a forked child for an RPC on a connection of the parent's: nothing
# is written to a socket of before the fork. Channels share connections, and a new
# channel gets the parent's too until an RPC has failed on them.
_FOR_PARENTS_CONNECTION = ("wrong file descriptor generation", "closed on fork")


class ConnectionBroken(StoreUnavailable):
    """UNAVAILABLE: the connection ended, or the server is going away. Worth another try."""


class Aborted(StoreUnavailable):
    """ABORTED: contention with another commit, and nothing was done. Worth another try."""


class _Refused(StoreUnavailable):
    """The server answered with another error than those above."""

    def __init__(self, reason: str, code: grpc.StatusCode) -> None:
        super().__init__(reason)
        self.code = code


class Patience:
    """The time-outs of a verb: one for each RPC, and twice as long for all of them.

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

        With full jitter, so that callers that met once do not meet again.
        """
        delay = random.uniform(0, self._delay)
        self._delay = min(2 * self._delay, _MOST_DELAY)
        if self._clock.now() + delay + self._timeout / 4 > self._ends:
            raise trouble
        self._clock.sleep(delay)


class Rpc:
    """RPCs for rows of one kind. Thread-safe; survives fork with a factory.

    Args:
        client: an `ndb.Client`, or None; see `Endpoint`.
        client_factory: makes one when it is needed, in each process that needs one.
        namespace: None for the client's.
        kind: of the rows.
    """

    def __init__(
        self, client: Any, client_factory: Callable[[], Any], namespace: str | None, kind: str
    ) -> None:
        self._given = client
        self._factory = client_factory
        self._namespace = namespace
        self._kind = kind
        self._endpoint: Endpoint | None = None
        self._lock = threading.Lock()
        self._inherited = False
        reset_in_child(self._start_again)

    def _start_again(self) -> None:
        """Take a channel of its own in a forked child; a thread of the parent may hold the lock."""
        used = self._endpoint is not None or self._given is not None
        self._inherited = self._inherited or used
        self._endpoint = None
        self._lock = threading.Lock()

    # --- RPCs -------------------------------------------------------------------------------

    def look_up(self, name: str, patience: Patience) -> tuple[Any, Row | None]:
        """Return the key of a row, and the row as it is now; None where there is none."""
        endpoint = self.endpoint(patience)
        key = endpoint.key(self._kind, name)
        reply = self._again_if_broken(endpoint, "lookup", [key], patience)
        if reply.deferred:
            raise StoreUnavailable(f"{endpoint.name} put the lookup of {name!r:.100} off")
        if not reply.found:
            return key, None
        try:
            return key, read_row(reply.found[0], reply.read_time)
        except ValueError as error:
            raise StoreUnavailable(
                f"{endpoint.name}: {self._kind} {name!r:.100}: {error}"
            ) from error

    def rows(
        self, begin: str, end: str, limit: int, patience: Callable[[], Patience]
    ) -> Iterator[tuple[str, Row]]:
        """Return the rows from one name to before another, by name; a read for each row.

        `patience` makes one for each batch.
        """
        cursor = b""
        while limit > 0:
            waiting = patience()
            endpoint = self.endpoint(waiting)
            query = Query(start_cursor=cursor)
            query.limit.value = min(limit, _BATCH)
            query.kind.add(name=self._kind)
            both = query.filter.composite_filter
            both.op = _CompositeFilter.Operator.AND
            for operator, name in (("GREATER_THAN_OR_EQUAL", begin), ("LESS_THAN", end)):
                part = both.filters.add().property_filter
                part.property.name = "__key__"
                part.op = _PropertyFilter.Operator[operator]
                part.value.key_value.CopyFrom(endpoint.key(self._kind, name))
            batch = self._again_if_broken(endpoint, "run_query", query, waiting)
            for result in batch.entity_results:
                try:
                    yield result.entity.key.path[-1].name, read_row(result, batch.read_time)
                except ValueError:
                    continue  # not one of ours
            if not batch.entity_results:
                return
            limit -= len(batch.entity_results)
            cursor = batch.end_cursor

    def key(self, name: str, patience: Patience) -> Any:
        """Return the key of a row."""
        return self.endpoint(patience).key(self._kind, name)

    def commit(self, mutation: Any, patience: Patience) -> Any | None:
        """Apply one mutation; its `MutationResult`, or None when the row is not as it expects.

        ABORTED is contention with another commit, and nothing was done: tried
        again while there is time (see "Error codes").
        """
        endpoint = self.endpoint(patience)
        while True:
            try:
                result = self._call(endpoint, "commit", mutation, patience)
                return None if result.conflict_detected else result
            except Aborted as trouble:
                patience.wait_or_raise(trouble)
            except _Refused as trouble:
                if (mutation.WhichOneof("operation"), trouble.code) in _DOES_NOT_FIT:
                    return None
                raise

    def close(self) -> None:
        """Close the channel, if it is our own; the next RPC opens another."""
        with self._lock:
            endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None and self._given is None:
            endpoint.client.stub.close()

    # --- connection and errors --------------------------------------------------------------

    def _again_if_broken(
        self, endpoint: Endpoint, rpc: str, argument: Any, patience: Patience
    ) -> Any:
        try:
            return self._call(endpoint, rpc, argument, patience)
        except (Aborted, ConnectionBroken) as trouble:
            patience.wait_or_raise(trouble)
        return self._call(endpoint, rpc, argument, patience)

    def _call(self, endpoint: Endpoint, rpc: str, argument: Any, patience: Patience) -> Any:
        """Return the answer of one of the endpoint's RPCs."""
        while True:
            try:
                reply = getattr(endpoint, rpc)(argument, patience.for_rpc())
            except grpc.RpcError as error:
                patience.asked = patience.asked or not _stayed_here(error)
                trouble = _translated(error, f"{endpoint.name}: {rpc}", sent=patience.asked)
                if not _for_parents_connection(error):
                    raise trouble from error
                patience.wait_or_raise(trouble)
                continue
            except ValueError as error:  # a channel that was closed
                raise StoreUnavailable(f"{endpoint.name}: {error}", sent=patience.asked) from error
            patience.asked = True
            return reply

    def endpoint(self, patience: Patience) -> Endpoint:
        """Return the database; its client is made when it is first needed."""
        endpoint = self._endpoint
        if endpoint is not None:
            return endpoint
        if self._inherited and _forks_badly():
            # An RPC would hang, whatever its time-out and however new its channel.
            raise StoreUnavailable(
                "datastore: this process was forked from one that had used gRPC, whose support "
                "for that is off: set GRPC_ENABLE_FORK_SUPPORT=1, or fork before locks are used",
                sent=patience.asked,
            )
        with self._lock:
            if self._endpoint is None:
                try:
                    client = self._factory() if self._given is None else self._given
                    self._endpoint = Endpoint(client, self._namespace)
                except Exception as error:  # no project, no credentials
                    reason = f"datastore: no client: {error}"
                    raise StoreUnavailable(reason, sent=patience.asked) from error
            return self._endpoint


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


def _translated(error: Any, where: str, *, sent: bool) -> StoreUnavailable:
    """Return the error as the lock service knows it."""
    code = error.code()
    reason = f"{where}: {code.name}: {error.details() or '':.300}"
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
