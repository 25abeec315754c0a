"""The RPCs that write: Commit, AllocateIds, ReserveIds."""

from collections.abc import Iterator
from contextlib import contextmanager

from userlock_emulator.datastore import validation
from userlock_emulator.datastore.concurrency import ConcurrencyControl
from userlock_emulator.datastore.encoding import encode_key, encode_path
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.ids import IdAllocator
from userlock_emulator.datastore.mutations import CommitApplier, PreparedMutation, prepare
from userlock_emulator.datastore.protos import (
    AllocateIdsResponse,
    CommitRequest,
    CommitResponse,
    Message,
    ReserveIdsResponse,
    timestamp,
)
from userlock_emulator.datastore.sessions import Database, Sessions, database_of
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.transactions import State, Transaction, TransactionTable


class Writes:
    """The handler of the RPCs that write."""

    def __init__(
        self,
        storage: Storage,
        sessions: Sessions,
        transactions: TransactionTable,
        control: ConcurrencyControl,
    ) -> None:
        self._storage = storage
        self._sessions = sessions
        self._transactions = transactions
        self._control = control
        self._ids = IdAllocator()

    def commit(self, request: Message) -> Message:
        """Commit mutations (RPC Commit)."""
        database = database_of(request)
        if request.ByteSize() > validation.MAX_COMMIT_BYTES:
            raise invalid("datastore transaction or write too big.")
        if request.mode not in CommitRequest.Mode.values():
            raise invalid(f"unknown commit mode: {request.mode}")
        transactional = request.mode != CommitRequest.NON_TRANSACTIONAL
        prepared = prepare(request.mutations, *database, transactional=transactional)
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

    def allocate_ids(self, request: Message) -> Message:
        """Allocate ids (RPC AllocateIds)."""
        database = database_of(request)
        response = AllocateIdsResponse()
        partitions = []
        for key in request.keys:
            partitions.append(
                validation.check_key(key, *database, allow_incomplete=True, allow_reserved=False)
            )
            if not validation.is_incomplete(key):
                raise invalid(f"Key path element must not be complete: {validation.key_text(key)}")
        with self._id_commit(), self._storage.write() as writer:
            for partition, asked in zip(partitions, request.keys, strict=True):
                number = writer.catalog.intern_partition(partition)
                key = response.keys.add()
                key.CopyFrom(asked)
                validation.complete_key(key, partition)
                while True:
                    key.path[-1].id = self._ids.allocate(writer)
                    if not writer.is_taken(number, encode_path(key.path)):
                        break
        return response

    def reserve_ids(self, request: Message) -> Message:
        """Reserve ids (RPC ReserveIds)."""
        database = database_of(request)
        partitions = [
            validation.check_key(key, *database, allow_reserved=False) for key in request.keys
        ]
        with self._storage.write() as writer:
            for partition, key in zip(partitions, request.keys, strict=True):
                if key.path[-1].WhichOneof("id_type") == "id":
                    writer.reserve(writer.catalog.intern_partition(partition), encode_key(key))
                    writer.changed = True
        return ReserveIdsResponse()

    @contextmanager
    def _id_commit(self) -> Iterator[None]:
        """Keep the id counter consistent with its stored copy if the commit fails."""
        with self._storage.writer_lock:
            try:
                yield
            except BaseException:
                self._ids.rolled_back()
                raise

    def _commit(
        self,
        prepared: list[PreparedMutation],
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
                applier = CommitApplier(writer, self._ids, response.mutation_results)
                applier.load(prepared)
                for mutation in prepared:
                    applier.apply(mutation)
                # Before the rows become visible. A transaction that began in between would be
                # validated without them.
                self._control.committed(writer.version, applier.changes)
            if transaction is not None:
                self._transactions.finish(transaction, State.COMMITTED)
        response.index_updates = writer.index_updates
        response.commit_time.CopyFrom(timestamp(writer.version))
        return response

    def _may_commit(self, transaction: Transaction, *, writes: bool) -> None:
        """Check, under the writer lock, that the transaction is active and serializable."""
        self._transactions.check_active(transaction)
        self._control.validate(transaction, writes=writes)

    def _committing(
        self, request: Message, database: Database, *, transactional: bool
    ) -> Transaction | None:
        selector = request.WhichOneof("transaction_selector")
        if not transactional:
            if selector is not None:
                raise invalid("non-transaction commit cannot specify a transaction")
            return None
        if selector == "transaction":
            return self._transactions.get(request.transaction, database)
        if selector == "single_use_transaction":
            if request.single_use_transaction.WhichOneof("mode") == "read_only":
                raise invalid("single_use_transaction in a commit request must be READ_WRITE.")
            return self._sessions.begin(request.single_use_transaction, database)
        raise invalid("transactional commit requires a transaction")
