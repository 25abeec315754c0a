"""The query RPCs: RunQuery and RunAggregationQuery."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from userlock_emulator.datastore import gql, validation
from userlock_emulator.datastore.aggregation import aggregate, aggregated_properties
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.concurrency import ConcurrencyControl
from userlock_emulator.datastore.encoding import encode_key
from userlock_emulator.datastore.errors import contention, invalid
from userlock_emulator.datastore.explain import explain_execution, explain_plan
from userlock_emulator.datastore.index_policy import IndexPolicy
from userlock_emulator.datastore.masks import read_mask
from userlock_emulator.datastore.protos import (
    EntityResult,
    Message,
    RunAggregationQueryResponse,
    RunQueryResponse,
)
from userlock_emulator.datastore.query_batch import BatchBuilder
from userlock_emulator.datastore.rows import Reader
from userlock_emulator.datastore.sessions import Sessions, database_of
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.transactions import EntityId, QueryRange, Transaction

# The number of attempts for a query whose result changes before it is locked.
_QUERY_ATTEMPTS = 10


@dataclass(frozen=True)
class _Task:
    """The parts of answering one request.

    `fill` fills the response's batch. `results` returns the entities in the batch. `returned` gives
    the number of results, of the entities that were read for them, and of keys that came from an
    index alone.
    """

    build: Callable[[Reader], BatchBuilder]
    fill: Callable[[BatchBuilder], QueryRange]
    results: Callable[[], list[EntityId]]
    returned: Callable[[BatchBuilder], tuple[int, int, int]]


class Queries:
    """The handler of the query RPCs."""

    def __init__(
        self,
        storage: Storage,
        sessions: Sessions,
        control: ConcurrencyControl,
        indexes: IndexPolicy,
    ) -> None:
        self._indexes = indexes
        self._storage = storage
        self._sessions = sessions
        self._control = control

    def run_query(self, request: Message) -> Message:
        """Run a query (RPC RunQuery)."""
        partition = _partition(request)
        mask = read_mask(request)
        response = RunQueryResponse()
        query = request.query
        if request.WhichOneof("query_type") == "gql_query":
            query = gql.parse_query(request.gql_query, partition)
            response.query.CopyFrom(query)

        def results() -> list[EntityId]:
            return [
                (partition, encode_key(result.entity.key))
                for result in response.batch.entity_results
            ]

        def returned(builder: BatchBuilder) -> tuple[int, int, int]:
            kind = response.batch.entity_result_type
            documents, keys = (
                builder.scanned if kind == each else 0
                for each in (EntityResult.FULL, EntityResult.KEY_ONLY)
            )
            return len(response.batch.entity_results), documents, keys

        task = _Task(
            build=lambda reader: BatchBuilder(reader, partition, query, mask),
            fill=lambda builder: builder.fill(response.batch),
            results=results,
            returned=returned,
        )
        self._answer(request, response, task)
        return response

    def run_aggregation_query(self, request: Message) -> Message:
        """Run an aggregation (RPC RunAggregationQuery)."""
        partition = _partition(request)
        response = RunAggregationQueryResponse()
        query = request.aggregation_query
        if request.WhichOneof("query_type") == "gql_query":
            query = gql.parse_aggregation_query(request.gql_query, partition)
            response.query.CopyFrom(query)
        aggregated = aggregated_properties(query)
        task = _Task(
            build=lambda reader: BatchBuilder(
                reader, partition, query.nested_query, aggregated=aggregated
            ),
            fill=lambda builder: aggregate(builder, query, response.batch),
            # A number has no entities to lock; validation at commit covers it.
            results=list,
            returned=lambda builder: (1, 0, 0),
        )
        self._answer(request, response, task)
        return response

    def _answer(self, request: Message, response: Message, task: _Task) -> None:
        """Run a query, explain it, or both, as the request asks."""
        began = time.perf_counter_ns()
        explained = request.HasField("explain_options")
        builder: BatchBuilder | None = None

        def run(reader: Reader) -> QueryRange:
            nonlocal builder
            response.ClearField("batch")
            builder = task.build(reader)
            self._indexes.require(builder.query)
            return task.fill(builder)

        with self._sessions.reading(request.read_options, database_of(request), response) as (
            transaction,
            read_time,
        ):
            if explained and not request.explain_options.analyze:
                with self._storage.read(read_time) as reader:
                    query = task.build(reader).query
                self._indexes.require(query)
                explain_plan(query, response.explain_metrics)
                return
            self._query(transaction, read_time, run, task.results)
        if explained and builder is not None:
            results, documents, keys = task.returned(builder)
            explain_plan(builder.query, response.explain_metrics)
            explain_execution(
                response.explain_metrics,
                results=results,
                documents=documents,
                entries=builder.scanned,
                keys=keys,
                nanoseconds=time.perf_counter_ns() - began,
            )

    def _query(
        self,
        transaction: Transaction | None,
        time: int | None,
        run: Callable[[Reader], QueryRange],
        results: Callable[[], list[EntityId]],
    ) -> None:
        """Run a query until its result is valid."""
        if transaction is None or transaction.read_only:
            with self._storage.read(time) as reader:
                run(reader)
            return
        for _ in range(_QUERY_ATTEMPTS):
            with self._storage.read(self._control.query_time(transaction)) as reader:
                seen = run(reader)
            # Outside the read, as this may wait for other transactions.
            if self._control.querying(transaction, seen, results()):
                return
        raise contention()


def _partition(request: Message) -> Partition:
    """Return the partition of a query request."""
    if request.WhichOneof("query_type") is None:
        raise invalid("one of fields query and gql_query must be set")
    return validation.check_partition(request.partition_id, *database_of(request))
