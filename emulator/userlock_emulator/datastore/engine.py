"""The RPCs, without transport.

Each RPC takes a request message and returns the response message, or raises `DatastoreError`. All
are thread-safe.
"""

from collections.abc import Callable

from userlock_emulator.datastore.activity import Activity
from userlock_emulator.datastore.clock import VersionClock
from userlock_emulator.datastore.concurrency import ConcurrencyControl, Optimistic
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.index_policy import IndexPolicy
from userlock_emulator.datastore.protos import BeginTransactionResponse, Message, RollbackResponse
from userlock_emulator.datastore.queries import Queries
from userlock_emulator.datastore.reads import Reads
from userlock_emulator.datastore.sessions import Sessions, database_of
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.transactions import TransactionTable
from userlock_emulator.datastore.writes import Writes

ControlFactory = Callable[[TransactionTable, VersionClock], ConcurrencyControl]


class Engine:
    """The Datastore service on one storage.

    The RPCs are attributes, named as in the proto: `lookup`, `run_query`, `run_aggregation_query`,
    `commit`, `allocate_ids`, `reserve_ids` and the methods below.

    Args:
        control: makes the concurrency control for the transactions.
        indexes: the composite indexes that queries need; None for none.
    """

    def __init__(
        self,
        storage: Storage,
        control: ControlFactory = Optimistic,
        indexes: IndexPolicy | None = None,
    ) -> None:
        self._storage = storage
        self._transactions = TransactionTable(storage.clock, storage.secret)
        self._control = control(self._transactions, storage.clock)
        self._transactions.on_end = self._control.finished
        self._sessions = Sessions(storage, self._transactions)
        reads = Reads(storage, self._sessions, self._control)
        queries = Queries(storage, self._sessions, self._control, indexes or IndexPolicy())
        writes = Writes(storage, self._sessions, self._transactions, self._control)
        self.lookup = reads.lookup
        self.run_query = queries.run_query
        self.run_aggregation_query = queries.run_aggregation_query
        self.commit = writes.commit
        self.allocate_ids = writes.allocate_ids
        self.reserve_ids = writes.reserve_ids

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for other transactions."""
        return self._control.waiting

    def activity(self) -> Activity:
        """Return the active transactions and their locks."""
        return Activity(self._control.name, self._transactions.active(), self._control.locks())

    def begin_transaction(self, request: Message) -> Message:
        """Begin a transaction (RPC BeginTransaction)."""
        database = database_of(request)
        transaction = self._sessions.begin(request.transaction_options, database)
        return BeginTransactionResponse(transaction=transaction.id)

    def rollback(self, request: Message) -> Message:
        """Roll back a transaction (RPC Rollback)."""
        database = database_of(request)
        if not request.transaction:
            raise invalid("transaction required")
        self._transactions.roll_back(request.transaction, database)
        return RollbackResponse()

    def reset(self) -> None:
        """Delete all entities and abort all transactions. Ids and versions continue to grow."""
        with self._storage.writer_lock:
            self._storage.reset()
            self._transactions.clear()
            self._control.clear()

    def close(self) -> None:
        """Abort all transactions, so that no request waits for one of them."""
        self._transactions.clear()
