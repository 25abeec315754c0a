"""A Datastore without a network: returns prepared responses at once.

It replaces `ndb.Client.stub`. The remaining cost of a `get` or a `put` is the work of ndb and
userlock in this process.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb
from google.cloud.datastore_v1.types import datastore as messages
from google.cloud.datastore_v1.types import query as query_messages

PROJECT = "benchmarks"
_VERSION = 1_700_000_000_000_000


class _Answered:
    """A finished gRPC call."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def result(self) -> object:
        return self._answer

    def exception(self) -> None:
        return None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        callback(self)


class _Method:
    def __init__(self, answer: Callable[[Any], object]) -> None:
        self._answer = answer

    def future(
        self, request: object, timeout: float | None = None, metadata: object = ()
    ) -> _Answered:
        return _Answered(self._answer(request))


class InstantDatastore:
    """A stub that returns prepared responses to look-ups and queries, in transactions as well.

    The response to a commit has a result for each of its mutations, as if all had landed.
    Transactions begin, each with its own id, and are committed or rolled back.

    Args:
        grows: whether commits give entities another version than that of the responses.
    """

    #: Google's own transport module has no other gate, which would need marked requests.
    __module__ = "google.benchmarks"

    def __init__(self, *, grows: bool = True) -> None:
        self._version = _VERSION + grows
        #: The responses to the next look-ups, first come first used.
        self.lookups: deque[object] = deque()
        #: The responses to the next queries, likewise.
        self.queries: deque[object] = deque()
        self._transactions = itertools.count(1)
        self._committed: dict[int, object] = {}
        rolled_back = messages.RollbackResponse()
        self.lookup = _Method(self._lookup)
        self.run_query = _Method(lambda request: self.queries.popleft())
        self.begin_transaction = _Method(lambda request: self._begun())
        self.commit = _Method(self._commit)
        self.rollback = _Method(lambda request: rolled_back)

    def _lookup(self, request: Any) -> object:
        response = self.lookups.popleft()
        if getattr(request, "_pb", request).read_options.HasField("new_transaction"):
            vars(response)["_pb"].transaction = self._new_id()
        return response

    def _begun(self) -> object:
        return messages.BeginTransactionResponse(transaction=self._new_id())

    def _new_id(self) -> bytes:
        return f"transaction {next(self._transactions)}".encode()

    def _commit(self, request: Any) -> object:
        count = len(getattr(request, "_pb", request).mutations)
        if count not in self._committed:  # responses are never changed, so one serves all
            result = messages.MutationResult(version=self._version)
            self._committed[count] = messages.CommitResponse(
                mutation_results=[result] * count, index_updates=count
            )
        return self._committed[count]


def client(datastore: InstantDatastore) -> Any:
    """Return an ndb client that talks to `datastore`."""
    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    found = ndb.Client(project=PROJECT, credentials=credentials)
    found.stub = datastore
    return found


def results(entities: list[bytes]) -> list[Any]:
    """Return query results with these entities, as messages fresh from the wire."""
    batch = query_messages.QueryResultBatch.deserialize(_batch(entities))
    return list(batch.entity_results)


def looked_up(entities: list[bytes]) -> Any:
    """Return the response to a look-up of these entities, fresh from the wire."""
    found = [query_messages.EntityResult.deserialize(_result(entity)) for entity in entities]
    response = messages.LookupResponse(found=found)
    return messages.LookupResponse.deserialize(messages.LookupResponse.serialize(response))


def queried(entities: list[bytes]) -> Any:
    """Return the response to a query for these entities, fresh from the wire."""
    batch = query_messages.QueryResultBatch.deserialize(_batch(entities))
    batch.entity_result_type = query_messages.EntityResult.ResultType.FULL
    batch.more_results = query_messages.QueryResultBatch.MoreResultsType.NO_MORE_RESULTS
    response = messages.RunQueryResponse(batch=batch)
    return messages.RunQueryResponse.deserialize(messages.RunQueryResponse.serialize(response))


def _batch(entities: list[bytes]) -> bytes:
    found = [query_messages.EntityResult.deserialize(_result(entity)) for entity in entities]
    batch = query_messages.QueryResultBatch(entity_results=found)
    serialized: bytes = query_messages.QueryResultBatch.serialize(batch)
    return serialized


def _result(entity: bytes) -> bytes:
    result = query_messages.EntityResult(version=_VERSION, cursor=b"a cursor of some length")
    result._pb.entity.ParseFromString(entity)
    serialized: bytes = query_messages.EntityResult.serialize(result)
    return serialized
