"""What each RPC means, without any transport.

Each method of `Engine` takes a request message and returns the response message,
or raises `DatastoreError`. All methods may be called by any number of threads.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from emulator.datastore import mutations as mutation_module
from emulator.datastore import validation
from emulator.datastore.aggregation import aggregate
from emulator.datastore.clock import VersionClock
from emulator.datastore.concurrency import ConcurrencyControl, Optimistic
from emulator.datastore.encoding import encode_key, encode_path
from emulator.datastore.errors import (
    Code,
    DatastoreError,
    contention,
    invalid,
    unimplemented,
)
from emulator.datastore.ids import IdAllocator
from emulator.datastore.protos import (
    AllocateIdsResponse,
    BeginTransactionResponse,
    CommitRequest,
    CommitResponse,
    KeyPb,
    LookupResponse,
    Message,
    ReserveIdsResponse,
    RollbackResponse,
    RunAggregationQueryResponse,
    RunQueryResponse,
    microseconds,
    timestamp,
)
from emulator.datastore.query_batch import MAX_BATCH_BYTES, BatchBuilder
from emulator.datastore.rows import Reader
from emulator.datastore.storage import Storage
from emulator.datastore.transactions import (
    EntityId,
    QueryRange,
    State,
    Transaction,
    TransactionTable,
)

Database = tuple[str, str]
ControlFactory = Callable[[TransactionTable, VersionClock], ConcurrencyControl]

# How often a query is run again because its result changed before it was locked.
_QUERY_ATTEMPTS = 10


class Engine:
    """The Datastore service on one storage.

    Args:
        control: makes the concurrency control for the transactions.
    """

    def __init__(self, storage: Storage, control: ControlFactory = Optimistic) -> None:
        self._storage = storage
        self._transactions = TransactionTable(storage.clock, storage.secret)
        self._control: ConcurrencyControl = control(self._transactions, storage.clock)
        self._transactions.on_end = self._control.finished
        self._ids = IdAllocator()

    def lookup(self, request: Message) -> Message:
        """Lookup."""
        database = _database(request)
        if request.HasField("property_mask"):
            raise unimplemented("property masks in lookups")
        if not request.keys:
            raise invalid("A lookup needs at least one key.")
        if len(request.keys) > validation.MAX_LOOKUP_KEYS:
            raise invalid(f"A lookup may have at most {validation.MAX_LOOKUP_KEYS} keys.")
        wanted = [(validation.check_key(key, *database), encode_key(key)) for key in request.keys]
        response = LookupResponse()
        with self._reading(request.read_options, database, response) as (transaction, time):
            if transaction is not None and not transaction.read_only:
                time = self._control.reading(transaction, wanted)
            with self._storage.read(time) as reader:
                _look_up(reader, request.keys, wanted, response)
        return response

    def run_query(self, request: Message) -> Message:
        """RunQuery."""
        database = _database(request)
        if request.HasField("property_mask"):
            raise unimplemented("property masks in queries")
        _check_query_request(request)
        partition = validation.check_partition(request.partition_id, *database)
        response = RunQueryResponse()

        def run(reader: Reader) -> QueryRange:
            response.ClearField("batch")
            return BatchBuilder(reader, partition, request.query).fill(response.batch)

        def results() -> list[EntityId]:
            return [
                (partition, encode_key(result.entity.key))
                for result in response.batch.entity_results
            ]

        with self._reading(request.read_options, database, response) as (transaction, time):
            self._query(transaction, time, run, results)
        return response

    def run_aggregation_query(self, request: Message) -> Message:
        """RunAggregationQuery."""
        database = _database(request)
        _check_query_request(request)
        partition = validation.check_partition(request.partition_id, *database)
        response = RunAggregationQueryResponse()

        def run(reader: Reader) -> QueryRange:
            response.ClearField("batch")
            return aggregate(reader, partition, request.aggregation_query, response.batch)

        with self._reading(request.read_options, database, response) as (transaction, time):
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

    def begin_transaction(self, request: Message) -> Message:
        """BeginTransaction."""
        transaction = self._begin(request.transaction_options, _database(request))
        return BeginTransactionResponse(transaction=transaction.id)

    def commit(self, request: Message) -> Message:
        """Commit."""
        database = _database(request)
        transactional = request.mode != CommitRequest.NON_TRANSACTIONAL
        prepared = mutation_module.prepare(
            request.mutations, *database, transactional=transactional
        )
        transaction = self._committing(request, database, transactional=transactional)
        if transaction is not None and transaction.read_only and prepared:
            raise invalid("Cannot modify entities in a read-only transaction.")
        try:
            response = self._commit(prepared, transaction)
        except BaseException:
            if transaction is not None:
                self._transactions.finish(transaction, State.ABORTED)
            raise
        if not transactional:
            response.ClearField("commit_time")
        return response

    def rollback(self, request: Message) -> Message:
        """Rollback."""
        database = _database(request)
        if not request.transaction:
            raise invalid("A rollback needs a transaction.")
        self._transactions.roll_back(request.transaction, database)
        return RollbackResponse()

    def allocate_ids(self, request: Message) -> Message:
        """AllocateIds."""
        database = _database(request)
        response = AllocateIdsResponse()
        partitions = []
        for key in request.keys:
            partitions.append(
                validation.check_key(key, *database, allow_incomplete=True, allow_reserved=False)
            )
            if not validation.is_incomplete(key):
                raise invalid("The last element of a key to allocate must have no identifier.")
        with self._id_commit(), self._storage.write() as writer:
            for partition, asked in zip(partitions, request.keys, strict=True):
                number = writer.catalog.intern_partition(partition)
                key = response.keys.add()
                key.CopyFrom(asked)
                while True:
                    key.path[-1].id = self._ids.allocate(writer)
                    if not writer.is_taken(number, encode_path(key.path)):
                        break
        return response

    def reserve_ids(self, request: Message) -> Message:
        """ReserveIds."""
        database = _database(request)
        partitions = [
            validation.check_key(key, *database, allow_reserved=False) for key in request.keys
        ]
        with self._storage.write() as writer:
            for partition, key in zip(partitions, request.keys, strict=True):
                if key.path[-1].WhichOneof("id_type") == "id":
                    writer.reserve(writer.catalog.intern_partition(partition), encode_key(key))
                    writer.changed = True
        return ReserveIdsResponse()

    def reset(self) -> None:
        """Forget all entities; abort all transactions. Ids and versions go on growing."""
        with self._storage.writer_lock:
            self._transactions.clear()
            self._control.clear()
            self._storage.reset()

    @contextmanager
    def _id_commit(self) -> Iterator[None]:
        """Keep the id counter in step with its stored copy if the commit fails."""
        with self._storage.writer_lock:
            try:
                yield
            except BaseException:
                self._ids.rolled_back()
                raise

    def _commit(
        self,
        prepared: list[mutation_module.PreparedMutation],
        transaction: Transaction | None,
    ) -> Message:
        response = CommitResponse()
        if transaction is not None and not prepared:
            with self._storage.writer_lock:
                self._may_commit(transaction, writes=False)
                self._transactions.finish(transaction, State.COMMITTED)
            response.commit_time.CopyFrom(timestamp(self._storage.clock.read_time()))
            return response
        entities = [(m.partition, m.encoded) for m in prepared if m.encoded is not None]
        with self._control.writing(transaction, entities), self._id_commit():
            if transaction is not None:
                self._may_commit(transaction, writes=True)
            with self._storage.write() as writer:
                applier = mutation_module.CommitApplier(writer, self._ids)
                for mutation in prepared:
                    applier.apply(mutation)
                # Before the rows become visible, so that no transaction can begin
                # in between whose validation would miss them.
                self._control.committed(writer.version, applier.changes)
            if transaction is not None:
                self._transactions.finish(transaction, State.COMMITTED)
        response.mutation_results.extend(applier.results)
        response.index_updates = writer.index_updates
        response.commit_time.CopyFrom(timestamp(writer.version))
        return response

    def _may_commit(self, transaction: Transaction, *, writes: bool) -> None:
        """Under the writer lock: the transaction has not ended and is serializable."""
        self._transactions.check_active(transaction)
        self._control.validate(transaction, writes=writes)

    def _committing(
        self, request: Message, database: Database, *, transactional: bool
    ) -> Transaction | None:
        selector = request.WhichOneof("transaction_selector")
        if not transactional:
            if selector is not None:
                raise invalid("A non-transactional commit must not name a transaction.")
            return None
        if selector == "transaction":
            return self._transactions.get(request.transaction, database)
        if selector == "single_use_transaction":
            if request.single_use_transaction.WhichOneof("mode") == "read_only":
                raise invalid("A single-use transaction must be read-write.")
            return self._begin(request.single_use_transaction, database)
        raise invalid("A transactional commit needs a transaction.")

    def _begin(self, options: Message, database: Database) -> Transaction:
        read_time: int | None = None
        read_only = options.WhichOneof("mode") == "read_only"
        if read_only and options.read_only.HasField("read_time"):
            read_time = self._checked_read_time(options.read_only.read_time)
        return self._transactions.begin(database, read_only=read_only, read_time=read_time)

    @contextmanager
    def _reading(
        self, options: Message, database: Database, response: Message
    ) -> Iterator[tuple[Transaction | None, int | None]]:
        """The transaction to read in and the time to read at (None: now).

        Puts the id of a transaction begun by the request into the response.
        """
        which = options.WhichOneof("consistency_type")
        if which == "transaction" and options.transaction:
            transaction = self._transactions.get(options.transaction, database)
            try:
                yield transaction, transaction.snapshot
            except DatastoreError as error:
                if error.code is Code.ABORTED:
                    self._transactions.finish(transaction, State.ABORTED)
                raise
        elif which == "new_transaction":
            transaction = self._begin(options.new_transaction, database)
            try:
                yield transaction, transaction.snapshot
            except BaseException:
                self._transactions.finish(transaction, State.ROLLED_BACK)
                raise
            response.transaction = transaction.id
        elif which == "read_time":
            yield None, self._checked_read_time(options.read_time)
        elif which == "transaction":
            raise invalid("The transaction id is empty.")
        else:
            # Eventual consistency may, and here does, read the newest data.
            yield None, None

    def _checked_read_time(self, read_time: Message) -> int:
        if read_time.nanos % 1000:
            raise invalid("read_time must have microsecond precision.")
        time = microseconds(read_time)
        latest = self._storage.clock.read_time()
        if time > latest:
            if time > self._storage.clock.now():
                raise invalid("read_time cannot be in the future.")
            # A commit is under way that may be older than the time asked for.
            with self._storage.writer_lock:
                pass
        if time < self._storage.oldest_readable:
            raise DatastoreError(
                Code.FAILED_PRECONDITION, "read_time is too far in the past (over one hour)."
            )
        return time


def _database(request: Message) -> Database:
    validation.check_request_database(request.project_id, request.database_id)
    return (request.project_id, request.database_id)


def _look_up(
    reader: Reader, keys: Sequence[KeyPb], wanted: list[EntityId], response: Message
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
            size += len(stored.data)
            result.create_time.CopyFrom(timestamp(stored.created))
            result.update_time.CopyFrom(timestamp(stored.version))
        # ndb finds its results by the bytes of their keys.
        result.entity.key.CopyFrom(key)
    response.read_time.CopyFrom(timestamp(reader.time))


def _check_query_request(request: Message) -> None:
    if request.HasField("explain_options"):
        raise unimplemented("query explain")
    which = request.WhichOneof("query_type")
    if which == "gql_query":
        raise unimplemented("GQL queries")
    if which is None:
        raise invalid("The request has no query.")
