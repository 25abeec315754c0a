"""The transaction that a request belongs to, and the time at which it reads."""

from collections.abc import Iterator
from contextlib import contextmanager

from userlock_emulator.datastore import validation
from userlock_emulator.datastore.errors import Code, DatastoreError, invalid
from userlock_emulator.datastore.protos import Message, ReadOptions
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.transactions import State, Transaction, TransactionTable

Database = tuple[str, str]


def database_of(request: Message) -> Database:
    """Return the project and the database that a request names."""
    validation.check_request_database(request.project_id, request.database_id)
    return (request.project_id, request.database_id)


class Sessions:
    """The requests' transactions: begins new ones, finds existing ones."""

    def __init__(self, storage: Storage, transactions: TransactionTable) -> None:
        self._storage = storage
        self._transactions = transactions

    def begin(self, options: Message, database: Database) -> Transaction:
        """Begin a transaction with these TransactionOptions."""
        read_time: int | None = None
        read_only = options.WhichOneof("mode") == "read_only"
        if options.read_write.previous_transaction:
            self._transactions.check_retried(options.read_write.previous_transaction)
        if read_only and options.read_only.HasField("read_time"):
            read_time = self._checked_read_time(options.read_only.read_time)
        return self._transactions.begin(database, read_only=read_only, read_time=read_time)

    @contextmanager
    def reading(
        self, options: Message, database: Database, response: Message
    ) -> Iterator[tuple[Transaction | None, int | None]]:
        """Yield the transaction to read in and the time to read at (None: now).

        If the request begins a transaction, its id is put into the response.
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
            transaction = self.begin(options.new_transaction, database)
            try:
                yield transaction, transaction.snapshot
            except BaseException:
                self._transactions.finish(transaction, State.ROLLED_BACK)
                raise
            response.transaction = transaction.id
        elif which == "read_time":
            yield None, self._checked_read_time(options.read_time)
        elif which == "transaction":
            raise invalid("a transaction cannot be the empty string.")
        elif options.read_consistency not in ReadOptions.ReadConsistency.values():
            raise invalid(f"unknown read consistency: {options.read_consistency}")
        else:
            # Eventual consistency may read the newest data, and does so here.
            yield None, None

    def _checked_read_time(self, read_time: Message) -> int:
        time = validation.exact_microseconds(read_time)
        latest = self._storage.clock.read_time()
        if time > latest:
            if time > self._storage.clock.now():
                raise invalid("read_time cannot be in the future.")
            # A commit in progress may be older than the requested time.
            with self._storage.writer_lock:
                pass
        if time < self._storage.oldest_readable:
            raise DatastoreError(
                Code.FAILED_PRECONDITION, "read_time is too far in the past (over one hour)."
            )
        return time
