"""The store under watch: invariants of every write, by any process and at any time.

    - A holder keeps its lock. No other process replaces or removes its record unless the lease
      is done or has expired. No other process declares it done, except an operator who breaks it.
    - A waiter keeps its place. No write loses a waiter. No waiter is overtaken before the lock has
      been free for the promised time, once for each process of the overtaken waiters.
    - A process without the lock may replace its record only to reserve a free lock.
    - A batch claim never overtakes an interactive waiter.

The watch keeps its own data: the begin of each waiter's queueing, the end of each lease, and its
outcome. It does not use `Record`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tests.leases import existing
from tests.simulation.records import Seen, parse_record, tokens_in
from userlock.lock.store import Stored
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

if TYPE_CHECKING:
    from tests.simulation.world import Process

#: The promise of the documentation: the time for which a free lock waits for the first waiter.
PATIENCE_SECONDS = 0.25
_ROUNDING = 1e-6


class Ending(NamedTuple):
    """The end of a lease."""

    how: str
    at: float
    by: str = ""


@dataclasses.dataclass
class _Lock:
    seen: Seen | None = None
    lapses_at: float = 0.0
    #: The time since when the lock is free, although its record exists.
    free_since: float | None = None
    #: The record's successive holders, each with its begin.
    held_by: list[tuple[float, str]] = dataclasses.field(default_factory=list)


class Watch:
    """A memory store with a check of each write. Its verbs also take the calling process.

    Attributes:
        endings: the end of each lease, by token: only the first event.
        owners: the process of each token.
        queued_at: the begin of each token's queueing, as a number in the order of writes.
        aged_at: the ageing of batch, likewise.
        displaced: tokens that have lost their place, by being overtaken or with the data.
        relied_on: returns whether the owner of a token believes it holds the lock. Set by the
            user of the watch.
        breakers: processes that are breaking a lock now, once per call.
    """

    def __init__(self, store: MemoryStore, clock: ManualClock) -> None:
        self.store = store
        self._clock = clock
        self._locks: dict[str, _Lock] = {}
        self._writes = 0
        self.violations: list[str] = []
        self.endings: dict[str, Ending] = {}
        self.owners: dict[str, Process] = {}
        self.queued_at: dict[str, int] = {}
        self.aged_at: dict[str, int] = {}
        self.displaced: set[str] = set()
        self.relied_on: Callable[[str], bool] = lambda token: False
        self.breakers: list[Process] = []

    # --- the verbs --------------------------------------------------------------------------

    def read(self, lock_id: str) -> Stored | None:
        self._before(lock_id)
        return self.store.read(lock_id)

    def create(
        self, who: Process, lock_id: str, record: bytes, ttl_seconds: float
    ) -> object | None:
        lock = self._before(lock_id)
        version = self.store.create(lock_id, record, ttl_seconds)
        if version is not None:
            self._written(who, lock, lock_id, record, ttl_seconds)
        return version

    def swap(
        self, who: Process, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        lock = self._before(lock_id)
        new = self.store.swap(lock_id, version, record, ttl_seconds)
        if new is not None:
            self._written(who, lock, lock_id, record, ttl_seconds)
        return new

    def take_over(
        self, who: Process, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        lock = self._before(lock_id)
        new = self.store.take_over(lock_id, version, record, ttl_seconds)
        if new is not None:
            stored = existing(self.store.read(lock_id))
            self._written(who, lock, lock_id, stored.record, ttl_seconds)
        return new

    def remove(self, who: Process, lock_id: str, version: object) -> bool:
        lock = self._before(lock_id)
        removed = self.store.remove(lock_id, version)
        if removed:
            self._removed(who, lock, lock_id)
        return removed

    def append(self, who: Process, lock_id: str, line: bytes) -> Stored | None:
        lock = self._before(lock_id)
        stored = self.store.append(lock_id, line)
        if stored is not None and stored.record.endswith(line):
            self._appended(who, lock, lock_id, line)
            lock.seen = parse_record(stored.record)
        return stored

    # --- accidents --------------------------------------------------------------------------

    def forget(self, lock_id: str | None = None) -> None:
        """Evict a lock's record, or all records."""
        for name in [lock_id] if lock_id is not None else list(self._locks):
            lock = self._before(name)
            self.store.evict(name)
            if lock.seen is not None:
                self._end(lock.seen.holder, "forgotten")
                self._displace(lock.seen.queue)
                lock.seen = None
            lock.free_since = None

    # --- the data ---------------------------------------------------------------------------

    def lapses_at(self, lock_id: str) -> float:
        """Return the end of the present record's lifetime."""
        lock = self._before(lock_id)
        return lock.lapses_at if lock.seen is not None else 0.0

    def idle_since(self, lock_id: str) -> float | None:
        """Return the time since when the record says that the lock is free; None if it is not."""
        return self._before(lock_id).free_since

    def waiting(self, lock_id: str) -> tuple[str, ...]:
        lock = self._before(lock_id)
        return () if lock.seen is None else lock.seen.queue

    def holders_since(self, lock_id: str, since: float) -> set[str]:
        """Return the record's holders since that time, including the one at that time."""
        held = self._before(lock_id).held_by
        return {token for _, token in held[-1:]} | {
            token
            for number, (_, token) in enumerate(held)
            if number + 1 == len(held) or held[number + 1][0] >= since
        }

    def _before(self, lock_id: str) -> _Lock:
        """Return the data on a lock, updated to the present time."""
        lock = self._locks.setdefault(lock_id, _Lock())
        if lock.seen is None:
            return lock
        now = self._clock.now()
        if now >= lock.lapses_at and lock.free_since is None:
            lock.free_since = lock.lapses_at
        if self.store.read(lock_id) is None:  # not read during the whole grace period
            self._end(lock.seen.holder, "taken")
            self._displace(lock.seen.queue)
            lock.seen, lock.free_since = None, None
        return lock

    def _violation(self, lock_id: str, what: str) -> None:
        self.violations.append(f"{self._clock.now():.3f} {lock_id}: {what}")

    def _end(self, token: str, how: str, by: str = "") -> None:
        self.endings.setdefault(token, Ending(how, self._clock.now(), by))

    def _displace(self, tokens: tuple[str, ...]) -> None:
        self.displaced.update(tokens)

    def _written(
        self, who: Process, lock: _Lock, lock_id: str, record: bytes, ttl_seconds: float
    ) -> None:
        before, after = lock.seen, parse_record(record)
        lapses_at = self._clock.now() + ttl_seconds
        owner = self.owners.setdefault(after.holder, who)
        if after.released:
            self._left_free(who, lock, lock_id, after)
        elif owner is who:
            self._granted(lock, lock_id, after)
        elif before is None or before.holder != after.holder or lock.free_since is not None:
            self._violation(lock_id, f"{who.name} writes a record in another's name")
        elif abs(lapses_at - lock.lapses_at) > _ROUNDING:
            self._violation(lock_id, f"{who.name} has changed the end of another's lease")
        if before is not None:
            lost = set(before.queue) - set(after.queue) - {after.holder} - self.displaced
            mine = {token for token in lost if self.owners[token] is who}
            if after.released and len(mine) == 1:
                lost -= mine  # its caller times out with its reservation
            if lost - self._passable(lock, before, after):
                self._violation(lock_id, f"a write has lost {len(lost)} waiters")
        lock.seen, lock.lapses_at = after, lapses_at
        if not after.released:
            lock.free_since = None

    def _granted(self, lock: _Lock, lock_id: str, after: Seen) -> None:
        before = lock.seen
        if before is not None and before.holder != after.holder:
            self._succeeded(lock, lock_id, before, after)
        if before is None or before.holder != after.holder or before.released:
            lock.held_by.append((self._clock.now(), after.holder))
            # It may have held the lock before, and lost it by an accident without notice.
            self.endings.pop(after.holder, None)

    def _left_free(self, who: Process, lock: _Lock, lock_id: str, after: Seen) -> None:
        """Check a record without a holder: a released one, or a reservation."""
        before = lock.seen
        if before is not None and before.holder == after.holder:
            self._said_done(who, lock, lock_id, after.holder, after.done[after.holder])
        elif before is None or lock.free_since is None:
            self._violation(lock_id, f"{who.name} reserves a lock that is not free")
        else:
            self._end(before.holder, "taken")

    def _succeeded(self, lock: _Lock, lock_id: str, before: Seen, after: Seen) -> None:
        """Check the replacement of one claim's record by another's."""
        now = self._clock.now()
        if lock.free_since is None:
            self._violation(lock_id, "a record was replaced before the end of its lease")
        if self.relied_on(before.holder) and not before.released:
            self._violation(lock_id, "a record was replaced while its holder relied on it")
        self._end(before.holder, "taken")
        passed = self._ahead_of(after.holder, before)
        if not passed or lock.free_since is None:
            return
        processes = {self.owners[token].name for token in passed}
        if now - lock.free_since < PATIENCE_SECONDS * len(processes) - _ROUNDING:
            kind = "batch" if after.holder in before.batch else "a claim"
            self._violation(
                lock_id,
                f"{kind} overtook {len(passed)} waiters of {len(processes)} processes, "
                f"{now - lock.free_since:.3f} s after the lock was free",
            )
        self._displace(tuple(passed))

    def _passable(self, lock: _Lock, before: Seen, after: Seen) -> set[str]:
        """Return the waiters whose place relative to the claim is unknown. After the patience they
        may be overtaken.

        Aged batch is somewhere among the interactive requests that arrived during its wait. A
        displaced waiter is at the place of its own clock.
        """
        if before.holder == after.holder or after.released or lock.free_since is None:
            return set()
        if self._clock.now() - lock.free_since < PATIENCE_SECONDS - _ROUNDING:
            return set()
        aged = self.aged_at.get(after.holder, 0)
        passed = {
            token
            for token in before.queue
            if token not in after.queue
            and (
                token in self.aged_at
                or self.queued_at[token] < aged
                or after.holder in self.displaced
            )
        }
        self._displace(tuple(passed))
        return passed

    def _ahead_of(self, token: str, seen: Seen) -> list[str]:
        """Return the waiters that must be served before `token`: by the order of writes,
        interactive first."""
        here = [other for other in seen.queue if other != token and other not in self.displaced]
        if token not in seen.queue:
            return here
        if token in self.displaced:
            return []
        return [other for other in here if self._goes_before(other, token, seen)]

    def _goes_before(self, other: str, token: str, seen: Seen) -> bool:
        if (other in seen.batch) != (token in seen.batch):
            return token in seen.batch
        # Aged batch ranks as interactive: certainly relative to requests that arrived later.
        if other in self.aged_at and token not in self.aged_at:
            return self.aged_at[other] < self.queued_at[token]
        first = self.queued_at[other] < self.queued_at[token]
        if other in self.aged_at and token in self.aged_at:
            # Each hand-off writes the queue in the order of service at that time.
            return first and self.aged_at[other] < self.aged_at[token]
        return first

    def _removed(self, who: Process, lock: _Lock, lock_id: str) -> None:
        seen = lock.seen
        assert seen is not None
        # That of a free lock is nobody's: a waiter that leaves last removes it.
        lapsed = self._clock.now() >= lock.lapses_at
        own = seen.released or lapsed or self.owners[seen.holder] is who
        if not own or self.relied_on(seen.holder):
            self._violation(lock_id, f"{who.name} removed a record that was not its own")
        if seen.queue:
            self._violation(lock_id, "a record was removed with waiters in its queue")
        self._end(seen.holder, "removed late" if lapsed else "removed")
        lock.seen, lock.free_since = None, None

    def _appended(self, who: Process, lock: _Lock, lock_id: str, line: bytes) -> None:
        self._writes += 1
        kind, token = tokens_in(line)
        assert lock.seen is not None
        if kind[0] in "+~":
            self.owners.setdefault(token, who)
            # It is queued again, at the place of its own clock: its entry was lost, perhaps on its
            # way.
            again = token in self.queued_at or kind[0] == "~"
            if again and token not in lock.seen.queue:
                self.displaced.add(token)
            self.queued_at.setdefault(token, self._writes)
            return
        if kind == "^":
            self.aged_at.setdefault(token, self._writes)
        if kind != "=":
            return
        note = line.decode().removeprefix(f"\n= {token}").strip()
        self._said_done(who, lock, lock_id, token, note)

    def _said_done(self, who: Process, lock: _Lock, lock_id: str, token: str, note: str) -> None:
        mine = self.owners.setdefault(token, who) is who and not self.relied_on(token)
        if not mine and not (note and who in self.breakers):
            self._violation(lock_id, f"{who.name} declared another one done")
        assert lock.seen is not None
        if token == lock.seen.holder and not lock.seen.released:
            lapsed = self._clock.now() >= lock.lapses_at
            if lock.free_since is None:
                lock.free_since = self._clock.now()
            if note:
                self._end(token, "broken", note)
            elif not lapsed:
                self._end(token, "released")
            else:
                self._end(token, "released late")
