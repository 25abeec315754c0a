"""The store, watched: what must be true of every write, whoever made it and whenever it landed.

    - who holds a lock keeps it: its record is replaced or removed by nobody else unless it is
      done, or its time is over; nobody else says that it is done (but an operator who breaks it)
    - whoever stands in line stays there: no write loses a waiter, and nobody goes past others but
      after the lock has lain free for as long as is promised to each process that they are of
    - who does not hold a lock may write its record anew all the same: to offer a lock that is
      free, or to make the record shorter; the lease ends when it would have
    - a batch claim never goes past a person who stands in line

The watch keeps books of its own: who began to stand in line when, when each
lease's time ends, and what became of it. It does not use `Record`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.records import Seen, tokens_in, understand
from userlock.lock.store import Stored
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

if TYPE_CHECKING:
    from tests.simulation.world import Process

#: What the documentation promises: for so long a free lock waits for whoever is first.
PATIENCE_SECONDS = 0.25
_ROUNDING = 1e-6


class Ending(NamedTuple):
    """What became of a lease, and when.

    Attributes:
        how: "removed" or "released" by its owner, "broken", "taken" after its time, "forgotten".
        at: by the store's clock.
        by: for "broken": by whom.
    """

    how: str
    at: float
    by: str = ""


@dataclasses.dataclass
class _Lock:
    """The watch's books on one lock."""

    seen: Seen | None = None
    lapses_at: float = 0.0
    #: Since when nobody has a right to it, although its record stands there.
    free_since: float | None = None
    #: Whose its record has been, from when on.
    held_by: list[tuple[float, str]] = dataclasses.field(default_factory=list)


class Watch:
    """A memory store behind books. Its verbs also take who asks.

    Attributes:
        complaints: what must not have happened.
        endings: what became of each lease, by token: the first thing only.
        owners: whose each token is.
        stood_at: when each token began to stand in line, as a number in the order of writes.
        aged_at: when batch began to rank with people, likewise.
        displaced: tokens that have lost their place, to patience or with the data.
        relied_on: whether the owner of a token holds the lock now, as far as it knows. Set by
            whoever uses the watch.
        breakers: processes that are breaking a lock now, once for each time.
    """

    def __init__(self, store: MemoryStore, clock: ManualClock) -> None:
        self.store = store
        self._clock = clock
        self._locks: dict[str, _Lock] = {}
        self._writes = 0
        self.complaints: list[str] = []
        self.endings: dict[str, Ending] = {}
        self.owners: dict[str, Process] = {}
        self.stood_at: dict[str, int] = {}
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

    def rewrite(self, who: Process, lock_id: str, version: object, record: bytes) -> object | None:
        lock = self._before(lock_id)
        new = self.store.rewrite(lock_id, version, record)
        if new is not None:
            stored = self.store.read(lock_id)
            assert stored is not None
            assert stored.seconds_left is not None
            self._written(who, lock, lock_id, record, stored.seconds_left)
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
        if stored is not None and stored.record.endswith(line):  # there may be no room for it
            self._appended(who, lock, lock_id, line)
            lock.seen = understand(stored.record)
        return stored

    # --- accidents --------------------------------------------------------------------------

    def forget(self, lock_id: str | None = None) -> None:
        """Evict a lock's record; of all locks, if none is named."""
        for name in [lock_id] if lock_id is not None else list(self._locks):
            lock = self._before(name)
            self.store.evict(name)
            if lock.seen is not None:
                self._end(lock.seen.holder, "forgotten")
                self._displace(lock.seen.line)
                lock.seen = None
            lock.free_since = None

    # --- the books --------------------------------------------------------------------------

    def lapses_at(self, lock_id: str) -> float:
        """When the present record's time is over."""
        lock = self._before(lock_id)
        return lock.lapses_at if lock.seen is not None else 0.0

    def idle_since(self, lock_id: str) -> float | None:
        """Since when the record has said that nobody has a right to the lock; None if not."""
        return self._before(lock_id).free_since

    def waiting(self, lock_id: str) -> tuple[str, ...]:
        """Who stands in line."""
        lock = self._before(lock_id)
        return () if lock.seen is None else lock.seen.line

    def holders_since(self, lock_id: str, since: float) -> set[str]:
        """Whose the record has been since then, and at that moment."""
        held = self._before(lock_id).held_by
        return {token for _, token in held[-1:]} | {
            token
            for number, (_, token) in enumerate(held)
            if number + 1 == len(held) or held[number + 1][0] >= since
        }

    def _before(self, lock_id: str) -> _Lock:
        """The books on a lock, brought up to now."""
        lock = self._locks.setdefault(lock_id, _Lock())
        if lock.seen is None:
            return lock
        now = self._clock.now()
        if now >= lock.lapses_at and lock.free_since is None:
            lock.free_since = lock.lapses_at
        if self.store.read(lock_id) is None:  # nobody has looked for the whole grace
            self._end(lock.seen.holder, "taken")
            self._displace(lock.seen.line)
            lock.seen, lock.free_since = None, None
        return lock

    def _complain(self, lock_id: str, what: str) -> None:
        self.complaints.append(f"{self._clock.now():.3f} {lock_id}: {what}")

    def _end(self, token: str, how: str, by: str = "") -> None:
        self.endings.setdefault(token, Ending(how, self._clock.now(), by))

    def _displace(self, tokens: tuple[str, ...]) -> None:
        self.displaced.update(tokens)

    def _written(
        self, who: Process, lock: _Lock, lock_id: str, record: bytes, ttl_seconds: float
    ) -> None:
        """A whole record has been written."""
        before, after = lock.seen, understand(record)
        lapses_at = self._clock.now() + ttl_seconds
        owner = self.owners.setdefault(after.holder, who)
        if after.released:
            self._left_free(who, lock, lock_id, after)
        elif owner is who:
            self._granted(lock, lock_id, after)
        elif before is None or before.holder != after.holder or lock.free_since is not None:
            self._complain(lock_id, f"{who.name} writes a record in another's name")
        elif abs(lapses_at - lock.lapses_at) > _ROUNDING:
            self._complain(lock_id, f"{who.name} has given another's lease another end")
        if before is not None:
            lost = set(before.line) - set(after.line) - {after.holder} - self.displaced
            mine = {token for token in lost if self.owners[token] is who}
            if after.released and len(mine) == 1:
                lost -= mine  # it gives up with its offer
            if lost - self._passable(lock, before, after):
                self._complain(lock_id, f"a write has lost {len(lost)} who stand in line")
        lock.seen, lock.lapses_at = after, lapses_at
        if not after.released:
            lock.free_since = None

    def _granted(self, lock: _Lock, lock_id: str, after: Seen) -> None:
        before = lock.seen
        if before is not None and before.holder != after.holder:
            self._succeeded(lock, lock_id, before, after)
        if before is None or before.holder != after.holder or before.released:
            lock.held_by.append((self._clock.now(), after.holder))
            # It may have had the lock before, and lost it to an accident without a notice.
            self.endings.pop(after.holder, None)

    def _left_free(self, who: Process, lock: _Lock, lock_id: str, after: Seen) -> None:
        """A record was written that nobody holds: a holder's last word, or an offer."""
        before = lock.seen
        if before is not None and before.holder == after.holder:
            self._said_done(who, lock, lock_id, after.holder, after.done[after.holder])
        elif before is None or lock.free_since is None:
            self._complain(lock_id, f"{who.name} offers a lock that is not free")
        else:
            self._end(before.holder, "taken")

    def _succeeded(self, lock: _Lock, lock_id: str, before: Seen, after: Seen) -> None:
        """One claim's record has taken the place of another's."""
        now = self._clock.now()
        if lock.free_since is None:
            self._complain(lock_id, "a record was replaced while its lease had still to run")
        if self.relied_on(before.holder) and not before.released:
            self._complain(lock_id, "a record was replaced while its holder relied on it")
        self._end(before.holder, "taken")
        passed = self._ahead_of(after.holder, before)
        if not passed or lock.free_since is None:
            return
        processes = {self.owners[token].name for token in passed}
        if now - lock.free_since < PATIENCE_SECONDS * len(processes) - _ROUNDING:
            kind = "batch" if after.holder in before.batch else "a claim"
            self._complain(
                lock_id,
                f"{kind} went past {len(passed)} of {len(processes)} processes in line, "
                f"{now - lock.free_since:.3f} s after the lock was free",
            )
        self._displace(tuple(passed))

    def _passable(self, lock: _Lock, before: Seen, after: Seen) -> set[str]:
        """Those who may or may not stand ahead of the claim; in time, they may be passed.

        Batch that has aged stands somewhere among the people who came while
        it waited, and who had lost its place, where its own clock says.
        """
        if before.holder == after.holder or after.released or lock.free_since is None:
            return set()
        if self._clock.now() - lock.free_since < PATIENCE_SECONDS - _ROUNDING:
            return set()
        aged = self.aged_at.get(after.holder, 0)
        passed = {
            token
            for token in before.line
            if token not in after.line
            and (
                token in self.aged_at
                or self.stood_at[token] < aged
                or after.holder in self.displaced
            )
        }
        self._displace(tuple(passed))
        return passed

    def _ahead_of(self, token: str, seen: Seen) -> list[str]:
        """Who must be served before `token`: by the order of writes, people first."""
        here = [other for other in seen.line if other != token and other not in self.displaced]
        if token not in seen.line:
            return here
        if token in self.displaced:
            return []
        return [other for other in here if self._goes_before(other, token, seen)]

    def _goes_before(self, other: str, token: str, seen: Seen) -> bool:
        if (other in seen.batch) != (token in seen.batch):
            return token in seen.batch
        # Batch that has aged ranks with people: surely with those who came after it had.
        if other in self.aged_at and token not in self.aged_at:
            return self.aged_at[other] < self.stood_at[token]
        first = self.stood_at[other] < self.stood_at[token]
        if other in self.aged_at and token in self.aged_at:
            # Each hand-off writes the line in the order in which it is served by then.
            return first and self.aged_at[other] < self.aged_at[token]
        return first

    def _removed(self, who: Process, lock: _Lock, lock_id: str) -> None:
        seen = lock.seen
        assert seen is not None
        if self.owners[seen.holder] is not who or self.relied_on(seen.holder):
            self._complain(lock_id, f"{who.name} removed a record that was not its own")
        if seen.line:
            self._complain(lock_id, "a record was removed with people in line")
        self._end(seen.holder, "removed")
        lock.seen, lock.free_since = None, None

    def _appended(self, who: Process, lock: _Lock, lock_id: str, line: bytes) -> None:
        self._writes += 1
        mark, token = tokens_in(line)
        assert lock.seen is not None
        if mark[0] in "+~":
            self.owners.setdefault(token, who)
            if token in self.stood_at and token not in lock.seen.line:
                self.displaced.add(token)  # it stands there again, by its own clock
            self.stood_at.setdefault(token, self._writes)
            return
        if mark == "^":
            self.aged_at.setdefault(token, self._writes)
        if mark != "=":
            return
        note = line.decode().removeprefix(f"\n= {token}").strip()
        self._said_done(who, lock, lock_id, token, note)

    def _said_done(self, who: Process, lock: _Lock, lock_id: str, token: str, note: str) -> None:
        mine = self.owners.setdefault(token, who) is who and not self.relied_on(token)
        if not mine and not (note and who in self.breakers):
            self._complain(lock_id, f"{who.name} said that another is done")
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
