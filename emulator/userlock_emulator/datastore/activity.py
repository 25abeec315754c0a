"""The activity of transactions at one moment: the locks held, the requests that wait."""

from typing import NamedTuple

from userlock_emulator.datastore.transactions import Active, EntityId, Transaction

# A transaction may hold very many locks. A view names the first ones and counts all.
MAX_NAMED = 100


class Holding(NamedTuple):
    """The locks of one transaction: some of each sort, those first that others wait for.

    Attributes:
        total: the number of all.
    """

    transaction: Transaction
    exclusive: tuple[EntityId, ...]
    shared: tuple[EntityId, ...]
    total: int


class Waiting(NamedTuple):
    """A request that waits for locks.

    Attributes:
        transaction: its transaction; None for a commit outside transactions.
        client: the client that waits.
        exclusive: whether it is to write the entities.
        entities: some of those it waits for.
        total: the number of all.
        seconds: the time that it has waited.
        blockers: the owners before it; None for a commit outside transactions.
    """

    transaction: Transaction | None
    client: str
    exclusive: bool
    entities: tuple[EntityId, ...]
    total: int
    seconds: float
    blockers: tuple[Transaction | None, ...]


class Locks(NamedTuple):
    """All locks of a mode. In the optimistic modes there are none."""

    holdings: tuple[Holding, ...] = ()
    waits: tuple[Waiting, ...] = ()


class Activity(NamedTuple):
    """The active transactions, the oldest first, and their locks."""

    mode: str
    transactions: list[Active]
    locks: Locks
