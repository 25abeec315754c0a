"""Requests to Datastore past ndb, over the connection of an `ndb.Client`.

Requests on the client's public stub meet nothing of ndb's: no context, event loop, cache, hooks or
retries, and no transaction of the caller's, which takes part in requests that name it only.

Sources: google.datastore.v1 datastore.proto (`Mutation`, `MutationResult`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any
from urllib.parse import urlencode

import grpc
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.datastore_v1.types import entity as entity_types
from google.cloud.datastore_v1.types import query as query_types

from userlock.waits import finish, result_of, task_loop

# The plain protobuf classes: proto-plus's wrappers are some twenty times slower.
Entity: Any = entity_types.Entity.pb()
Key: Any = entity_types.Key.pb()
Mutation: Any = datastore_types.Mutation.pb()
Query: Any = query_types.Query.pb()

_LookupRequest: Any = datastore_types.LookupRequest
_CommitRequest: Any = datastore_types.CommitRequest
_RunQueryRequest: Any = datastore_types.RunQueryRequest

#: For the answer to a rollback. After a minute the transaction ends by itself.
_ROLLBACK_SECONDS = 60.0


class Endpoint:
    """A database and a namespace, with four of its RPCs. Thread-safe.

    Each RPC but the rollback takes its time-out in seconds, and raises `grpc.RpcError`. Messages
    are plain protobuf. It blocks a thread, and lets a task wait (`userlock.waits`).

    Args:
        client: an `ndb.Client` (or an object with its `stub`, `project`, `database` and
            `namespace`).
        namespace: None for the client's.
        stub: None for the client's.

    Attributes:
        client: as given.
        project, database, namespace: as requests name them.
        name: the database, for messages.
    """

    def __init__(self, client: Any, namespace: str | None = None, stub: Any = None) -> None:
        self.client = client
        self._stub = stub
        self.project: str = client.project
        database = getattr(client, "database", None)
        self.database: str = "" if database in (None, "(default)") else database
        if namespace is None:
            namespace = getattr(client, "namespace", None)
        self.namespace = namespace or ""
        self.name = f"datastore {self.project}/{self.database or '(default)'}"
        self._metadata = _routing(self.project, self.database)

    def key(self, kind: str, name: str) -> Any:
        """Return the key of an entity."""
        key = Key()
        key.path.add(kind=kind, name=name)
        self._place(key.partition_id)
        return key

    async def lookup(self, keys: list[Any], timeout: float) -> Any:
        """Return the `LookupResponse` for some keys."""
        request = _LookupRequest.pb()(keys=keys)
        # Explicit because a stale answer would show a lock as free.
        request.read_options.read_consistency = datastore_types.ReadOptions.ReadConsistency.STRONG
        return await self._call("lookup", _LookupRequest, request, timeout)

    async def run_query(self, query: Any, timeout: float) -> Any:
        """Return the next batch of results of a query."""
        request = _RunQueryRequest.pb()(query=query)
        self._place(request.partition_id)
        return (await self._call("run_query", _RunQueryRequest, request, timeout)).batch

    async def commit(self, mutation: Any, timeout: float) -> Any:
        """Apply one mutation, in no transaction; return its `MutationResult`.

        It is atomic by itself, and the server compares its `base_version` while it applies it.
        """
        mode = _CommitRequest.Mode.NON_TRANSACTIONAL
        request = _CommitRequest.pb()(mode=mode, mutations=[mutation])
        return (await self.send_commit(request, timeout))[0]

    async def send_commit(self, request: Any, timeout: float) -> Any:
        """Send a commit request, in which the database is filled in; return its results."""
        return (await self._call("commit", _CommitRequest, request, timeout)).mutation_results

    def begin_rollback(self, transaction: bytes) -> None:
        """Begin to roll a transaction back. Nobody waits for the answer."""
        place = {"project_id": self.project, "database_id": self.database}
        request = datastore_types.RollbackRequest(transaction=transaction, **place)
        options: Any = {"timeout": _ROLLBACK_SECONDS, "metadata": self._metadata}
        (self._stub or self.client.stub).rollback.future(request, **options)

    def _place(self, partition: Any) -> None:
        partition.project_id = self.project
        partition.database_id = self.database
        partition.namespace_id = self.namespace

    async def _call(self, rpc: str, message: Any, request: Any, timeout: float) -> Any:
        request.project_id = self.project
        request.database_id = self.database
        send, wrapped = getattr(self._stub or self.client.stub, rpc), message.wrap(request)
        options: Any = {"timeout": timeout, "metadata": self._metadata}
        if task_loop() is None:
            response = send(wrapped, **options)
        else:
            future = send.future(wrapped, **options)
            try:
                response = await result_of(future)
            except asyncio.CancelledError:  # as in `waits.ready`
                with contextlib.suppress(grpc.RpcError):
                    await finish(result_of, future)
                raise
        return type(response).pb(response)


@functools.cache
def _routing(project: str, database: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata without which requests for a named database do not find their way."""
    routing = urlencode({"project_id": project, "database_id": database})
    return (("x-goog-request-params", routing),)
