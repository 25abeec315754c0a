"""Requests for rows, each outside of any transaction, with a time-out; errors and retries.

A reply never answers another's request: each RPC is a stream of its own.

Sources: https://cloud.google.com/datastore/docs/concepts/errors (how to react to which error);
https://github.com/grpc/grpc/blob/master/doc/fork_support.md.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from typing import Any

import grpc
from google.cloud.datastore_v1.types import query as query_types

import userlock.ids as ids
from userlock.clock import Clock
from userlock.datastore_rpc import Endpoint, Query
from userlock.fork import reset_in_child
from userlock.lock.store import RecordBusy, RecordRefused, StoreUnavailable
from userlock.signals import raise_interrupt
from userlock.stores.datastore.rows import Row, read_row
from userlock.stores.pool import Turns
from userlock.stores.stream import Place
from userlock.stores.timed_calls import TimedCall
from userlock.waits import pause

#: For one RPC, connecting included, in seconds. A hanging Datastore costs a request this, and a
#: quarter of it to look, before the breaker opens.
TIMEOUT = 0.4
#: For making the client, in seconds: google-auth asks the platform's metadata server.
_MAKING_TIMEOUT = 1.0

_FIRST_DELAY = 0.02
_MOST_DELAY = 0.5

_PropertyFilter: Any = query_types.PropertyFilter
_CompositeFilter: Any = query_types.CompositeFilter

_ADVICE = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the project is over its quota: see Quotas in the console",
    grpc.StatusCode.PERMISSION_DENIED: "the service account needs the role roles/datastore.user",
    grpc.StatusCode.UNAUTHENTICATED: "the credentials are not valid (any more)",
    grpc.StatusCode.NOT_FOUND: "there is no such database: check project and database id",
    grpc.StatusCode.FAILED_PRECONDITION: "the database must be in Datastore mode",
}
# No trouble, but a row that is not as the mutation expects.
_DOES_NOT_FIT = {"insert": grpc.StatusCode.ALREADY_EXISTS, "update": grpc.StatusCode.NOT_FOUND}
# gRPC's words for an RPC that did not leave this process, for want of a connection or credentials.
_NOT_SENT = (
    "failed to connect to all addresses",
    "DNS resolution failed",
    "Getting metadata from plugin failed",
)
# Its words in a forked child for an RPC on a connection of the parent's, to which nothing is
# written. A new channel gets those, too, until an RPC has failed on them.
_FOR_PARENTS_CONNECTION = ("wrong file descriptor generation", "closed on fork")


class ConnectionBroken(StoreUnavailable):
    """UNAVAILABLE: the connection ended, or the server is going away. Worth another try."""


class Channel:
    """The connection to a database. Thread-safe; survives fork with a factory."""

    def __init__(
        self, client: Any, client_factory: Callable[[], Any], namespace: str | None
    ) -> None:
        self._given = client
        self._endpoint: Endpoint | None = None
        make = functools.partial(_endpoint_of, client, client_factory, namespace)
        self._making = TimedCall(make, "userlock-client", "the look-up of credentials")
        self._inherited = False
        reset_in_child(self._start_again)

    def _start_again(self) -> None:
        self._inherited = self._inherited or bool(self._endpoint or self._given)
        self._endpoint = None

    async def endpoint(self, seconds: float | None = None) -> Endpoint:
        """Return the database; its client is made when it is first needed, within that time."""
        support = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "1").lower()
        if self._inherited and self._endpoint is None and support in ("0", "false", "no"):
            # An RPC would hang, whatever its time-out and however new its channel.
            raise StoreUnavailable(
                "datastore: this process was forked from one that had used gRPC, whose support "
                "for that is off: set GRPC_ENABLE_FORK_SUPPORT=1, or fork before locks are used",
                sent=False,
            )
        if (endpoint := self._endpoint) is not None:
            return endpoint
        try:
            self._endpoint = endpoint = await self._making.result(seconds or _MAKING_TIMEOUT)
        except Exception as error:  # no project, no credentials
            raise_interrupt(error)
            raise StoreUnavailable(f"datastore: no client: {error}", sent=False) from error
        return endpoint

    def close(self) -> None:
        """Close the client, if it is our own; the next RPC makes another."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None and self._given is None:
            endpoint.client.stub.close()


def _endpoint_of(client: Any, factory: Callable[[], Any], namespace: str | None) -> Endpoint:
    return Endpoint(factory() if client is None else client, namespace)


class Calls:
    """The RPCs of one verb. Each has a time-out in seconds, and all together twice as long.

    The time for which they wait for their turns does not count. One in a `hurry` does not wait: it
    finds out whether the server answers. If it does not, those that wait fail at once.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        turns: Turns[Place],
        kind: str,
        name: str,
        clock: Clock,
        timeout: float,
        *,
        hurry: bool,
    ) -> None:
        self.key = endpoint.key(kind, name)
        self._turns = turns
        self._hurry = hurry
        self._endpoint = endpoint
        self._kind = kind
        self._clock = clock
        self._timeout = timeout
        self._ends = clock.now() + 2 * timeout
        self._delay = _FIRST_DELAY
        self._sent = False
        self._unanswered = False  # an earlier try of the same may yet be carried out

    async def look_up(self) -> Row | None:
        reply = await self._call("lookup", [self.key], repeat=True)
        where = f"{self._endpoint.name}: a row of kind {self._kind}"
        if reply.deferred:
            raise StoreUnavailable(f"{where}: the lookup was put off")
        if not reply.found:
            return None
        try:
            return read_row(reply.found[0], reply.read_time)
        except ValueError as error:
            raise RecordRefused(f"{where}: {error}") from error

    async def query(self, begin: str, end: str, most: int, cursor: bytes) -> Any:
        """Return the next batch of rows from one name to before another; a read for each row."""
        query = Query(start_cursor=cursor)
        query.limit.value = most
        query.kind.add(name=self._kind)
        both = query.filter.composite_filter
        both.op = _CompositeFilter.Operator.AND
        for operator, name in (("GREATER_THAN_OR_EQUAL", begin), ("LESS_THAN", end)):
            part = both.filters.add().property_filter
            part.property.name = "__key__"
            part.op = _PropertyFilter.Operator[operator]
            part.value.key_value.CopyFrom(self._endpoint.key(self._kind, name))
        return await self._call("run_query", query, repeat=True)

    async def commit(self, mutation: Any) -> Any | None:
        """Apply one mutation; its `MutationResult`, or None when the row is not as it expects.

        ABORTED is contention with another commit, and nothing was done (see "Error codes").
        """
        unfit = _DOES_NOT_FIT.get(mutation.WhichOneof("operation"))
        result = await self._call("commit", mutation, unfit=unfit)
        return None if result is None or result.conflict_detected else result

    async def wait_or_raise(self, trouble: StoreUnavailable) -> None:
        """Wait a little before another try; raise `trouble` if there is no time for one.

        With full jitter, so that callers that met once do not meet again.
        """
        delay = random.uniform(0, self._delay)
        self._delay = min(2 * self._delay, _MOST_DELAY)
        if self._clock.now() + delay + self._timeout / 4 > self._ends:
            raise trouble
        await pause(self._clock, delay)

    async def _call(
        self, rpc: str, argument: Any, *, repeat: bool = False, unfit: object = None
    ) -> Any:
        """Return the answer to an RPC; `repeat`: it may be sent again, once, if a connection ends.

        None for an error of the code `unfit`.
        """
        where = f"{self._endpoint.name}: {rpc}"
        while True:
            place, timeout = await self._turn()
            try:
                answer = await getattr(self._endpoint, rpc)(argument, timeout)
            except grpc.RpcError as error:
                if not _stayed_here(error):
                    self._sent = True
                    self._unanswered = error.code() is grpc.StatusCode.UNAVAILABLE
                if error.code() is unfit:
                    return None
                trouble = self._translated(error, where)
                if trouble.slow and rpc != "commit":  # which may wait for others
                    self._turns.refuse(trouble.reason)
                trouble.__cause__ = error if ids.are_plain() else None  # it may name a lock
                if not (isinstance(trouble, RecordBusy) or _for_parents_connection(error)):
                    if not (repeat and isinstance(trouble, ConnectionBroken)):
                        raise trouble from trouble.__cause__
                    repeat = False
            except (ValueError, IndexError) as error:  # a closed channel; a commit without result
                raise_interrupt(error)
                raise StoreUnavailable(f"{where}: {error}", sent=self._sent) from error
            else:
                self._sent = True
                self._unanswered = False
                return answer
            finally:
                if place:
                    self._turns.give_back(place)
            await self.wait_or_raise(trouble)

    async def _turn(self) -> tuple[Place | None, float]:
        """Return the place of an RPC, and its time-out."""
        came_at = self._clock.now()
        try:
            place = None if self._hurry else await self._turns.take()
        except StoreUnavailable as trouble:
            trouble.sent = self._sent  # an earlier RPC of the verb may have been carried out
            raise
        now = self._clock.now()
        self._ends += now - came_at
        return place, max(min(self._timeout, self._ends - now), 0.001)

    def _translated(self, error: Any, where: str) -> StoreUnavailable:
        code = error.code()
        details = error.details() or "" if ids.are_plain() else "(lock ids are hidden)"
        reason = f"{where}: {code.name}: {details:.300}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return StoreUnavailable(reason, slow=True)
        if code is grpc.StatusCode.ABORTED:
            return RecordBusy(reason)
        if code is grpc.StatusCode.UNAVAILABLE or _for_parents_connection(error):
            # Behind a front end, the end of a connection is not the end of the commit.
            return ConnectionBroken(reason, sent=self._sent, slow=self._unanswered)
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return RecordRefused(reason)
        advice = f" ({_ADVICE[code]})" if code in _ADVICE else ""
        return StoreUnavailable(reason + advice)


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
