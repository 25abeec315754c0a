"""The life cycle of transactions, and their read sets.

A transaction never reads its own writes: these exist in its commit request alone. A
`ConcurrencyControl` (see `concurrency`) decides the state of the database that it reads, and
resolves conflicts between transactions.
"""

import enum
import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.clock import VersionClock
from userlock_emulator.datastore.cursors import Place
from userlock_emulator.datastore.errors import expired_transaction, invalid
from userlock_emulator.datastore.indexing import IndexedValues
from userlock_emulator.datastore.query import ParsedQuery, Row
from userlock_emulator.port.rpcs import CLIENT

# "Transactions: limits". A transaction lives 270 seconds, or 60 without activity.
LIFETIME_SECONDS = 270.0
IDLE_SECONDS = 60.0

_NONCE_BYTES = 12
_NAME_BYTES = 4
_REMEMBERED = 10_000

# An entity: its partition and its encoded key.
EntityId = tuple[Partition, bytes]


class State(enum.Enum):
    """The state of a transaction."""

    ACTIVE = enum.auto()
    COMMITTED = enum.auto()
    ROLLED_BACK = enum.auto()
    ABORTED = enum.auto()


class EntityChange(NamedTuple):
    """The effect of a commit on one entity: its index values before and after."""

    partition: Partition
    kind: str
    key: bytes
    before: IndexedValues | None
    after: IndexedValues | None


@dataclass(frozen=True)
class QueryRange:
    """The part of a query's order that a transaction has seen.

    It reaches from `start` (None: the beginning) up to and including `last` (None: the end), at
    `time` (a version).
    """

    time: int
    partition: Partition
    query: ParsedQuery
    start: Place | None
    last: bytes | None
    keys_only: bool

    def affected_by(self, change: EntityChange) -> bool:
        """Return whether the change would alter the result of the same query."""
        query = self.query
        if query.on_metadata:
            # The change may introduce a kind, a property or a namespace.
            return change.partition[:2] == self.partition[:2]
        if change.partition != self.partition or query.kind not in (None, change.kind):
            return False
        before = self._seen(change.key, change.before)
        after = self._seen(change.key, change.after)
        if self.keys_only or query.shown:
            return before != after
        return bool(before or after)

    def _seen(self, key: bytes, values: IndexedValues | None) -> list[tuple[bytes, bytes]]:
        rows: list[Row] = [] if values is None else self.query.rows(key, values)
        return sorted(
            (row.position, b"".join(row.projected))
            for row in rows
            if (self.start is None or self.start.is_before(row.position))
            and (self.last is None or row.position <= self.last)
        )


@dataclass
class Transaction:
    """An active transaction.

    Attributes:
        snapshot: the time at which it began (a version).
        keys_read: entities looked up, found or not.
        queries: ranges of queries run.
        over: it has ended, with any outcome; set before `TransactionTable.on_end` is called.
        client: the client that began it, as far as it is known.
    """

    id: bytes
    database: tuple[str, str]
    read_only: bool
    snapshot: int
    began: float
    last_used: float
    keys_read: set[EntityId] = field(default_factory=set)
    queries: list[QueryRange] = field(default_factory=list)
    over: bool = False
    client: str = ""

    @property
    def name(self) -> str:
        """Return a short name for people. It does not allow to use the transaction."""
        return self.id[:_NAME_BYTES].hex()


class Active(NamedTuple):
    """An active transaction, with the seconds since it began and since it was last used."""

    transaction: Transaction
    age_seconds: float
    idle_seconds: float


class TransactionTable:
    """All transactions: begins, finds and ends them. Thread-safe.

    Args:
        secret: signs the ids, so that an id that was once valid is still recognised
            after its transaction was removed (and, with stored data, after a restart).
        monotonic: seconds, for expiry.
    """

    def __init__(
        self,
        clock: VersionClock,
        secret: bytes,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._secret = secret
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._active: dict[bytes, Transaction] = {}
        self._finished: OrderedDict[bytes, State] = OrderedDict()
        # Called, without any lock held, with each transaction that has ended.
        self.on_end: Callable[[Transaction], None] = lambda transaction: None

    def begin(
        self, database: tuple[str, str], *, read_only: bool = False, read_time: int | None = None
    ) -> Transaction:
        """Begin a transaction that reads at `read_time`, or now."""
        nonce = secrets.token_bytes(_NONCE_BYTES - 1) + bytes([read_only])
        client = CLIENT.get()()
        now = self._monotonic()
        self.sweep()
        with self._lock:
            # Taken under the lock: from now on no change newer than the snapshot is dropped (see
            # `floor`).
            snapshot = self._clock.read_time() if read_time is None else read_time
            transaction = Transaction(
                nonce + self._signature(nonce),
                database,
                read_only,
                snapshot,
                now,
                now,
                client=client,
            )
            self._active[transaction.id] = transaction
        return transaction

    def get(self, transaction_id: bytes, database: tuple[str, str]) -> Transaction:
        """Return the active transaction with this id; counts as activity.

        Raises:
            DatastoreError: INVALID_ARGUMENT if it is unknown, finished, expired or
                belongs to another database.
        """
        self.sweep()
        now = self._monotonic()
        with self._lock:
            transaction = self._active.get(transaction_id)
            if transaction is None or transaction.database != database:
                self._check_known(transaction_id)
                raise expired_transaction()
            transaction.last_used = now
            return transaction

    def check_active(self, transaction: Transaction) -> None:
        """Check that the transaction may still commit.

        A commit calls this under the writer lock. While it waited for that lock, the transaction
        may have expired, or the same request may have arrived twice and committed it.

        Raises:
            DatastoreError: INVALID_ARGUMENT.
        """
        with self._lock:
            if transaction.over:
                raise expired_transaction()

    def finish(self, transaction: Transaction, state: State) -> None:
        """End the transaction; its id becomes useless."""
        with self._lock:
            if transaction.over:
                return
            self._end(transaction, state)
        self.on_end(transaction)

    def roll_back(self, transaction_id: bytes, database: tuple[str, str]) -> None:
        """End a transaction without effect.

        Rolling back an aborted, rolled-back or expired transaction succeeds. Clients do that before
        they retry, and an error here would hide the first one.

        Raises:
            DatastoreError: INVALID_ARGUMENT if the id was never allocated, belongs
                to another database, or the transaction has committed.
        """
        with self._lock:
            transaction = self._active.get(transaction_id)
            if transaction is None:
                self._check_known(transaction_id)
                if self._finished.get(transaction_id) is State.COMMITTED:
                    raise expired_transaction()
                return
            if transaction.database != database:
                raise expired_transaction()
            self._end(transaction, State.ROLLED_BACK)
        self.on_end(transaction)

    def check_retried(self, transaction_id: bytes) -> None:
        """Check that another transaction may name this one as its previous attempt.

        Raises:
            DatastoreError: INVALID_ARGUMENT if the id was never allocated, or belongs to a
                read-only transaction.
        """
        self._check_known(transaction_id)
        if transaction_id[_NONCE_BYTES - 1]:
            raise invalid("Cannot retry a read-only transaction.")

    def _check_known(self, transaction_id: bytes) -> None:
        nonce = transaction_id[:_NONCE_BYTES]
        if not secrets.compare_digest(transaction_id[_NONCE_BYTES:], self._signature(nonce)):
            raise invalid("Invalid transaction.")

    def active(self) -> list[Active]:
        """Return the active transactions, the oldest first."""
        self.sweep()
        now = self._monotonic()
        with self._lock:
            return [Active(t, now - t.began, now - t.last_used) for t in self._active.values()]

    def floor(self) -> int:
        """Return the time before which no read-write transaction, present or future, reads."""
        with self._lock:
            now = self._clock.read_time()
            return min((t.snapshot for t in self._active.values() if not t.read_only), default=now)

    def clear(self) -> None:
        """Abort all transactions."""
        self._abort(lambda transaction: True)

    def sweep(self) -> None:
        """Abort the expired transactions."""
        now = self._monotonic()
        self._abort(lambda t: now - t.last_used > IDLE_SECONDS or now - t.began > LIFETIME_SECONDS)

    def _abort(self, condition: Callable[[Transaction], bool]) -> None:
        with self._lock:
            over = [transaction for transaction in self._active.values() if condition(transaction)]
            for transaction in over:
                self._end(transaction, State.ABORTED)
        for transaction in over:
            self.on_end(transaction)

    def _end(self, transaction: Transaction, state: State) -> None:
        transaction.over = True
        del self._active[transaction.id]
        self._finished[transaction.id] = state
        if len(self._finished) > _REMEMBERED:
            self._finished.popitem(last=False)

    def _signature(self, nonce: bytes) -> bytes:
        return hashlib.blake2b(nonce, digest_size=8, key=self._secret).digest()
