"""A Datastore without a network: answers at once, with what was prepared.

Stands in for `ndb.Client.stub`. What is left of a `get` or a `put` is the work
of ndb and userlock in this process.
"""

from __future__ import annotations

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
    """A gRPC call that is over."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def result(self) -> object:
        return self._answer

    def exception(self) -> None:
        return None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        callback(self)


class _Method:
    def __init__(self, answer: Callable[[], object]) -> None:
        self._answer = answer

    def future(self, request: object, timeout: float, metadata: object) -> _Answered:
        return _Answered(self._answer())


class InstantDatastore:
    """Answers commits of one mutation, look-ups and queries with the responses prepared."""

    def __init__(self) -> None:
        #: The responses to the next look-ups, first come first used.
        self.lookups: deque[object] = deque()
        #: The responses to the next queries, likewise.
        self.queries: deque[object] = deque()
        result = messages.MutationResult(version=_VERSION + 1)
        committed = messages.CommitResponse(mutation_results=[result], index_updates=1)
        self.lookup = _Method(self.lookups.popleft)
        self.run_query = _Method(self.queries.popleft)
        self.commit = _Method(lambda: committed)


def client(datastore: InstantDatastore) -> Any:
    """An ndb client that talks to `datastore`."""
    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    found = ndb.Client(project=PROJECT, credentials=credentials)
    found.stub = datastore
    return found


def results(entities: list[bytes]) -> list[Any]:
    """Query results with these entities, as messages fresh from the wire."""
    batch = query_messages.QueryResultBatch.deserialize(_batch(entities))
    return list(batch.entity_results)


def looked_up(entities: list[bytes]) -> Any:
    """The response to a look-up of these entities, fresh from the wire."""
    found = [query_messages.EntityResult.deserialize(_result(entity)) for entity in entities]
    response = messages.LookupResponse(found=found)
    return messages.LookupResponse.deserialize(messages.LookupResponse.serialize(response))


def queried(entities: list[bytes]) -> Any:
    """The response to a query that finds these entities, fresh from the wire."""
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
