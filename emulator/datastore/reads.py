"""The RPCs that read: Lookup, RunQuery, RunAggregationQuery."""

from collections.abc import Callable, Sequence

from emulator.datastore import gql, validation
from emulator.datastore.aggregation import aggregate
from emulator.datastore.concurrency import ConcurrencyControl
from emulator.datastore.encoding import encode_key
from emulator.datastore.errors import contention, invalid, unimplemented
from emulator.datastore.masks import Mask, read_mask
from emulator.datastore.protos import (
    KeyPb,
    LookupResponse,
    Message,
    RunAggregationQueryResponse,
    RunQueryResponse,
    timestamp,
)
from emulator.datastore.query_batch import MAX_BATCH_BYTES, BatchBuilder
from emulator.datastore.rows import Reader
from emulator.datastore.sessions import Sessions, database_of
from emulator.datastore.storage import Storage
from emulator.datastore.transactions import EntityId, QueryRange, Transaction

# How often a query is run again because its result changed before it was locked.
_QUERY_ATTEMPTS = 10


class Reads:
    """Answers the RPCs that read."""

    def __init__(self, storage: Storage, sessions: Sessions, control: ConcurrencyControl) -> None:
        self._storage = storage
        self._sessions = sessions
        self._control = control

    def lookup(self, request: Message) -> Message:
        """Lookup."""
        database = database_of(request)
        mask = read_mask(request)
        if not request.keys:
            raise invalid("A lookup needs at least one key.")
        if len(request.keys) > validation.MAX_LOOKUP_KEYS:
            raise invalid(f"A lookup may have at most {validation.MAX_LOOKUP_KEYS} keys.")
        wanted = [(validation.check_key(key, *database), encode_key(key)) for key in request.keys]
        response = LookupResponse()
        with self._sessions.reading(request.read_options, database, response) as (
            transaction,
            time,
        ):
            if transaction is not None and not transaction.read_only:
                time = self._control.reading(transaction, wanted)
            with self._storage.read(time) as reader:
                _look_up(reader, request.keys, wanted, mask, response)
        return response

    def run_query(self, request: Message) -> Message:
        """RunQuery."""
        database = database_of(request)
        _check_query_request(request)
        mask = read_mask(request)
        partition = validation.check_partition(request.partition_id, *database)
        response = RunQueryResponse()
        query = request.query
        if request.WhichOneof("query_type") == "gql_query":
            query = gql.parse_query(request.gql_query, partition)
            response.query.CopyFrom(query)

        def run(reader: Reader) -> QueryRange:
            response.ClearField("batch")
            return BatchBuilder(reader, partition, query, mask).fill(response.batch)

        def results() -> list[EntityId]:
            return [
                (partition, encode_key(result.entity.key))
                for result in response.batch.entity_results
            ]

        with self._sessions.reading(request.read_options, database, response) as (
            transaction,
            time,
        ):
            self._query(transaction, time, run, results)
        return response

    def run_aggregation_query(self, request: Message) -> Message:
        """RunAggregationQuery."""
        database = database_of(request)
        _check_query_request(request)
        partition = validation.check_partition(request.partition_id, *database)
        response = RunAggregationQueryResponse()
        query = request.aggregation_query
        if request.WhichOneof("query_type") == "gql_query":
            query = gql.parse_aggregation_query(request.gql_query, partition)
            response.query.CopyFrom(query)

        def run(reader: Reader) -> QueryRange:
            response.ClearField("batch")
            return aggregate(reader, partition, query, response.batch)

        with self._sessions.reading(request.read_options, database, response) as (
            transaction,
            time,
        ):
            # A number has no entities to lock; it is validated at commit.
            self._query(transaction, time, run, list)
        return response

    def _query(
        self,
        transaction: Transaction | None,
        time: int | None,
        run: Callable[[Reader], QueryRange],
        results: Callable[[], list[EntityId]],
    ) -> None:
        """Run a query until its result stands."""
        if transaction is None or transaction.read_only:
            with self._storage.read(time) as reader:
                run(reader)
            return
        for _ in range(_QUERY_ATTEMPTS):
            with self._storage.read(self._control.query_time(transaction)) as reader:
                seen = run(reader)
            # Not while reading, as this may wait for other transactions.
            if self._control.querying(transaction, seen, results()):
                return
        raise contention()


def _look_up(
    reader: Reader,
    keys: Sequence[KeyPb],
    wanted: list[EntityId],
    mask: Mask | None,
    response: Message,
) -> None:
    """Fill a LookupResponse; what would make it too big for a client is deferred."""
    size = 0
    for key, (partition, encoded) in zip(keys, wanted, strict=True):
        if size > MAX_BATCH_BYTES:
            response.deferred.add().CopyFrom(key)
            continue
        number = reader.catalog.find_partition(partition)
        stored = None if number is None else reader.get(number, encoded)
        if stored is None:
            result = response.missing.add(version=reader.time)
        else:
            result = response.found.add(version=stored.version)
            result.entity.MergeFromString(stored.data)
            if mask is not None:
                mask.cut(result.entity)
            size += len(stored.data)
            result.create_time.CopyFrom(timestamp(stored.created))
            result.update_time.CopyFrom(timestamp(stored.version))
        # ndb finds its results by the bytes of their keys.
        result.entity.key.CopyFrom(key)
    response.read_time.CopyFrom(timestamp(reader.time))


def _check_query_request(request: Message) -> None:
    if request.HasField("explain_options"):
        raise unimplemented("query explain")
    if request.WhichOneof("query_type") is None:
        raise invalid("The request has no query.")
