"""Reader/writer locks on entities: queueing, deadlock resolution, timeouts.

* Any number of owners may share an entity; one may have it exclusively.
* Requests are granted in order of arrival, so that a stream of readers cannot starve a writer.
  There are two exceptions. An owner that shares an entity and wants it exclusively goes before all
  owners that have nothing yet. An owner does not queue behind a request that waits for an entity
  which this owner shares: the earlier request could not be granted first anyway.
* A request for several entities is granted as a whole. No owner holds an exclusive lock while it
  waits for another one.
* If waiting would close a cycle, its youngest transaction is aborted at once:

      A shares K        B shares K
      A wants K alone   waits for B
                        B wants K alone   would wait for A: B is aborted
      A gets K alone

  A younger owner never causes the oldest one to be aborted, so there is always progress.
* No request waits longer than `LOCK_TIMEOUT_SECONDS`.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from userlock_emulator.datastore.activity import MAX_NAMED, Holding, Locks, Waiting
from userlock_emulator.datastore.errors import DatastoreError, contention
from userlock_emulator.datastore.key_text import named
from userlock_emulator.datastore.transactions import EntityId, Transaction
from userlock_emulator.port.rpcs import CLIENT

# "Transactions: lock deadline" is 20 seconds, well below a client's own 60.
LOCK_TIMEOUT_SECONDS = 20.0

# Interval at which a waiting request checks for expired owners.
_SWEEP_SECONDS = 1.0

# The transactions that an error names, and the length of a key in it.
_MAX_CULPRITS = 3
_MAX_KEY_TEXT = 200
# Finding the blockers of a request costs a pass over the queue.
_MAX_WAITS_SHOWN = 100

_ages = itertools.count()

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Owner:
    """A holder of locks, or a waiter for some. A lower age came earlier.

    A plain commit, outside any transaction, is `ageless()`. It has read nothing and is never
    aborted in favour of a transaction.
    """

    age: int = field(default_factory=lambda: next(_ages))
    shared: set[EntityId] = field(default_factory=set)
    exclusive: set[EntityId] = field(default_factory=set)
    aborted: bool = False
    transaction: Transaction | None = None
    client: str = ""

    @classmethod
    def ageless(cls) -> "Owner":
        """Return an owner that is older than all others."""
        return cls(age=-1, client=CLIENT.get()())


@dataclass(eq=False)
class _Request:
    owner: Owner
    entities: frozenset[EntityId]
    exclusive: bool
    since: float
    upgrades: bool = field(init=False)

    def __post_init__(self) -> None:
        self.upgrades = self.exclusive and not self.entities.isdisjoint(self.owner.shared)


class LockTable:
    """All locks of one emulator. Thread-safe.

    Args:
        sweep: ends transactions that have expired, which releases their locks.
        monotonic: seconds.
    """

    def __init__(
        self, sweep: Callable[[], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._sweep = sweep
        self._monotonic = monotonic
        self._condition = threading.Condition()
        self._readers: dict[EntityId, set[Owner]] = {}
        self._writer: dict[EntityId, Owner] = {}
        self._queue: list[_Request] = []

    def share(self, owner: Owner, entities: Iterable[EntityId]) -> None:
        """Wait until the owner shares the entities.

        Raises:
            DatastoreError: ABORTED, after a deadlock or the timeout. The owner then has
                no locks.
        """
        wanted = frozenset(entities) - owner.shared - owner.exclusive
        self._acquire(_Request(owner, wanted, exclusive=False, since=self._monotonic()))

    def take(self, owner: Owner, entities: Iterable[EntityId]) -> None:
        """Wait until the owner has the entities exclusively. Raises as `share`."""
        wanted = frozenset(entities) - owner.exclusive
        self._acquire(_Request(owner, wanted, exclusive=True, since=self._monotonic()))

    def release(self, owner: Owner) -> None:
        """Release all the owner's locks."""
        with self._condition:
            self._drop(owner)

    @property
    def waiting(self) -> int:
        """Return the number of waiting requests."""
        with self._condition:
            return len(self._queue)

    def view(self, owners: Iterable[Owner]) -> Locks:
        """Return the locks of these owners, and the requests that wait."""
        with self._condition:
            contested = {each for request in self._queue for each in request.entities}
            holdings = []
            for owner in owners:
                if owner.transaction is None or not (owner.shared or owner.exclusive):
                    continue
                holdings.append(
                    Holding(
                        owner.transaction,
                        _some(owner.exclusive, contested),
                        # What it has both ways it has exclusively.
                        _some(owner.shared - owner.exclusive, contested),
                        len(owner.shared | owner.exclusive),
                    )
                )
            now = self._monotonic()
            waits = tuple(
                Waiting(
                    request.owner.transaction,
                    request.owner.client,
                    request.exclusive,
                    _some(request.entities, set()),
                    len(request.entities),
                    now - request.since,
                    tuple(blocker.transaction for blocker in self._blockers(request)),
                )
                for request in self._queue[:_MAX_WAITS_SHOWN]
            )
            return Locks(tuple(holdings), waits)

    def _acquire(self, request: _Request) -> None:
        owner = request.owner
        with self._condition:
            if owner.aborted:
                raise contention()
            if not request.entities:
                return
            self._enqueue(request)
            try:
                self._wait(request)
            except BaseException:
                owner.aborted = True
                self._drop(owner)
                raise
            finally:
                self._queue.remove(request)
            self._grant(request)

    def _enqueue(self, request: _Request) -> None:
        place = len(self._queue)
        if request.upgrades:
            place = sum(waiting.upgrades for waiting in self._queue)
        self._queue.insert(place, request)
        self._condition.notify_all()

    def _wait(self, request: _Request) -> None:
        deadline = request.since + LOCK_TIMEOUT_SECONDS
        while True:
            if request.owner.aborted:
                raise contention()
            blockers = self._blockers(request)
            if not blockers:
                return
            cycle = self._cycle(request.owner)
            if cycle:
                victim = max(cycle, key=lambda owner: owner.age)
                victim.aborted = True
                self._drop(victim)
                continue
            remaining = deadline - self._monotonic()
            if remaining <= 0:
                raise self._timed_out(request)
            if not self._condition.wait(min(remaining, _SWEEP_SECONDS)):
                self._sweep()

    def _timed_out(self, request: _Request) -> DatastoreError:
        """Return the error that names the transactions in whose locks a request got stuck."""
        now = self._monotonic()
        culprits = sorted(self._roots(request), key=lambda owner: owner.age)
        texts = [_described(owner, now) for owner in culprits[:_MAX_CULPRITS]]
        if len(culprits) > _MAX_CULPRITS:
            texts.append(f"{len(culprits) - _MAX_CULPRITS} more")
        wanted = named(min(filter(self._is_held, request.entities), default=min(request.entities)))
        if len(wanted) > _MAX_KEY_TEXT:
            wanted = f"{wanted[:_MAX_KEY_TEXT]}…"
        detail = (
            f"This request has waited {LOCK_TIMEOUT_SECONDS:g} s for the lock of {wanted}, behind"
            f" {', '.join(texts)}. To fix it: end that transaction in its client, or see"
            " /viewer/transactions at the emulator's address."
        )
        _log.warning("aborted for contention: %s", detail)
        return contention(detail)

    def _is_held(self, entity: EntityId) -> bool:
        return entity in self._writer or entity in self._readers

    def _roots(self, request: _Request) -> set[Owner]:
        """Return the owners that a request waits for at last, which do not wait themselves."""
        queued = {each.owner: each for each in self._queue}
        found: set[Owner] = set()
        visited: set[Owner] = set()
        ahead = self._blockers(request)
        while ahead:
            owner = ahead.pop()
            visited.add(owner)
            if owner in queued:
                ahead |= self._blockers(queued[owner]) - visited
            else:
                found.add(owner)
        return found

    def _grant(self, request: _Request) -> None:
        owner = request.owner
        if request.exclusive:
            owner.exclusive |= request.entities
            for entity in request.entities:
                self._writer[entity] = owner
        else:
            owner.shared |= request.entities
            for entity in request.entities:
                self._readers.setdefault(entity, set()).add(owner)
        # The requests behind may be readers that can now be granted as well.
        self._condition.notify_all()

    def _drop(self, owner: Owner) -> None:
        for entity in owner.shared:
            readers = self._readers[entity]
            readers.discard(owner)
            if not readers:
                del self._readers[entity]
        for entity in owner.exclusive:
            del self._writer[entity]
        owner.shared.clear()
        owner.exclusive.clear()
        self._condition.notify_all()

    def _blockers(self, request: _Request) -> set[Owner]:
        """Return the owners that a queued request waits for."""
        owner = request.owner
        blockers: set[Owner] = set()
        for entity in request.entities:
            if entity in self._writer:
                blockers.add(self._writer[entity])
            if request.exclusive:
                blockers |= self._readers.get(entity, set())
        for earlier in self._queue:
            if earlier is request:
                break
            if not (earlier.exclusive or request.exclusive):
                continue
            if earlier.entities.isdisjoint(request.entities):
                continue
            waits_for_us = earlier.exclusive and not earlier.entities.isdisjoint(owner.shared)
            if not waits_for_us:
                blockers.add(earlier.owner)
        blockers.discard(owner)
        return blockers

    def _cycle(self, start: Owner) -> list[Owner]:
        """Return owners that wait for each other in a cycle through `start`, if any."""
        path = [start]
        visited: set[Owner] = set()

        def search(owner: Owner) -> bool:
            for request in self._queue:
                if request.owner is not owner or owner.aborted:
                    continue
                for blocker in self._blockers(request):
                    if blocker is start:
                        return True
                    if blocker in visited:
                        continue
                    visited.add(blocker)
                    path.append(blocker)
                    if search(blocker):
                        return True
                    path.pop()
            return False

        return path if search(start) else []


def _some(entities: AbstractSet[EntityId], first: AbstractSet[EntityId]) -> tuple[EntityId, ...]:
    """Return some of the entities, those in `first` before the others."""
    others = (each for each in entities if each not in first)
    ordered = itertools.chain(sorted(entities & first), others)
    return tuple(itertools.islice(ordered, MAX_NAMED))


def _described(owner: Owner, now: float) -> str:
    transaction = owner.transaction
    if transaction is None:
        return "a commit outside transactions"
    begun = f"begun {now - transaction.began:.0f} s ago"
    idle = f"last used {now - transaction.last_used:.0f} s ago"
    by = f", by {transaction.client}" if transaction.client else ""
    return f"transaction {transaction.name} ({begun}, {idle}{by})"
