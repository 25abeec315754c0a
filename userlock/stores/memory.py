"""The memory store: records within one process, for tests.

Keeps every promise of the contract, and adds hooks that play the faults of real
stores: of the whole store (`evict`, `forget_everything`, `go_down`, `come_back`,
`room`), or of the next command of a kind, once for each call (`lose_command`,
`lose_reply`, `delay` and `arrive`, `before`).
"""

from __future__ import annotations

import collections
import enum
import itertools
import threading
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import SplitResult

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.record import Record
from userlock.lock.store import (
    GRACE_SECONDS,
    MAX_RECORD_BYTES,
    LeaseStore,
    Stored,
    StoreUnavailable,
    WakeUps,
)
from userlock.stores.urls import AddressError
from userlock.waits import Bell

Verb = Literal["create", "read", "swap", "rewrite", "remove", "append"]

_Answer = TypeVar("_Answer")


class _Entry(NamedTuple):
    record: bytes
    version: int
    lapses_at: float


class _Fault(enum.Enum):
    COMMAND_LOST = "the command was lost"
    REPLY_LOST = "the reply was lost"
    DELAYED = "the command is late"


class _WakeUps(WakeUps):
    """The bells of the waiters, by token."""

    def __init__(self) -> None:
        super().__init__()
        self._bells: dict[str, Bell] = {}

    async def begin(self, lock_id: str, token: str, bell: Bell) -> None:
        self._bells[token] = bell

    def end(self, token: str) -> None:
        self._bells.pop(token, None)

    def wake(self, token: str, stored: Stored) -> None:
        """Wake a waiter, if it is one of this process."""
        bell = self._bells.get(token)
        if bell is not None:
            self.woken(bell, stored)


class MemoryStore(LeaseStore):
    """A lease store in this process's memory. Thread-safe. Not for production.

    Args:
        clock: as the attribute.
        wakes: whether a release wakes the next waiter; otherwise waiters poll.

    Attributes:
        clock: for the time; tests hand in a manual one.
        asked: how often each verb was called, whether or not it was answered.
        room: how long a record may get by `append`, in bytes; lines beyond that are left out.
    """

    fences = True

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, wakes: bool = True) -> None:
        self.clock = clock
        self._wake_ups = _WakeUps() if wakes else None
        self.wake_ups = self._wake_ups
        self.asked: collections.Counter[Verb] = collections.Counter()
        self.room: float = MAX_RECORD_BYTES
        self._mutex = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        # Goes on through `forget_everything`: a version never comes back, as
        # it would in a memcached, whose numbers begin again at 1.
        self._versions = itertools.count(1)
        self._down: Callable[[], StoreUnavailable] | None = None
        self._faults: dict[Verb, collections.deque[tuple[_Fault, bool]]] = {}
        self._firsts: dict[Verb, collections.deque[Callable[[], object]]] = {}
        self._late: list[Callable[[], object]] = []

    # --- the store --------------------------------------------------------------------------

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        def do() -> int | None:
            return None if self._entry(lock_id) else self._put(lock_id, record, ttl_seconds)

        return self._carry_out("create", do)

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        return self._carry_out("read", lambda: self._stored(self._entry(lock_id)))

    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        def do() -> int | None:
            known = self._entry_of(lock_id, version)
            return self._put(lock_id, record, ttl_seconds) if known else None

        return self._carry_out("swap", do)

    def rewrite(self, lock_id: str, version: object, record: bytes) -> int | None:
        def do() -> int | None:
            entry = self._entry_of(lock_id, version)
            return self._replace(lock_id, entry, record).version if entry else None

        return self._carry_out("rewrite", do)

    def remove(self, lock_id: str, version: object) -> bool:
        def do() -> bool:
            known = self._entry_of(lock_id, version)
            return known is not None and self._entries.pop(lock_id) is known

        return self._carry_out("remove", do)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        def do() -> Stored | None:
            entry = self._entry(lock_id)
            if entry is not None and len(entry.record + line) <= self.room:
                entry = self._replace(lock_id, entry, entry.record + line)
            return self._stored(entry)

        return self._carry_out("append", do)

    def append_and_wake(self, lock_id: str, line: bytes) -> Stored | None:
        stored = self.append(lock_id, line)
        if stored is not None and self._wake_ups is not None:
            self._wake_ups.wake(Record(stored).next_token(), stored)
        return stored

    def close(self) -> None:
        """Keep the records: there are no connections to give up."""

    def lock_ids(self) -> list[str]:
        """Return the locks that have a record. No fault befalls this."""
        with self._mutex:
            return [lock_id for lock_id in list(self._entries) if self._entry(lock_id)]

    # --- faults of the whole store ----------------------------------------------------------

    def evict(self, lock_id: str) -> bool:
        """Lose a record, as a memcached short of memory does; whether it had not lapsed."""
        with self._mutex:
            entry = self._entries.pop(lock_id, None)
            return entry is not None and self.clock.now() < entry.lapses_at

    def forget_everything(self) -> None:
        """Lose every record, as a restarted memcached does. Old versions never match again."""
        with self._mutex:
            self._entries.clear()

    def go_down(
        self, reason: str = "the store is down", *, sent: bool = True, slow: bool = False
    ) -> None:
        """Do nothing but raise such a `StoreUnavailable`, until `come_back`."""
        # A new error each time: an exception gathers the traceback of every
        # place that it passes.
        with self._mutex:
            self._down = lambda: StoreUnavailable(reason, sent=sent, slow=slow)

    def come_back(self) -> None:
        """Answer again."""
        with self._mutex:
            self._down = None

    # --- faults of the next command of a kind -----------------------------------------------

    def lose_command(self, verb: Verb, *, slow: bool = False) -> None:
        """Lose the next such command on its way: it is not carried out, now or later.

        The caller sees a broken connection; `slow`: a time-out.
        """
        self._plan(verb, _Fault.COMMAND_LOST, slow=slow)

    def lose_reply(self, verb: Verb, *, slow: bool = False) -> None:
        """Lose the reply to the next such command, which is carried out. See `lose_command`."""
        self._plan(verb, _Fault.REPLY_LOST, slow=slow)

    def to_come(self) -> set[Verb]:
        """Return the kinds of commands that a planned fault still waits for."""
        with self._mutex:
            return {verb for verb, faults in self._faults.items() if faults}

    def delay(self, verb: Verb) -> None:
        """Let the next such command time out; `arrive` carries it out."""
        self._plan(verb, _Fault.DELAYED, slow=True)

    def arrive(self) -> list[object]:
        """Carry out the delayed commands, in their order; return the lost answers.

        Times to live count from now, as they do at a server.
        """
        with self._mutex:
            late, self._late = self._late, []
            return [do() for do in late]

    def before(self, verb: Verb, action: Callable[[], object]) -> None:
        """Call `action` when the next such command is on its way, before it arrives.

        It may use the store: so another client's command comes in between.
        """
        with self._mutex:
            self._firsts.setdefault(verb, collections.deque()).append(action)

    # --- within -----------------------------------------------------------------------------

    def _plan(self, verb: Verb, fault: _Fault, *, slow: bool) -> None:
        with self._mutex:
            self._faults.setdefault(verb, collections.deque()).append((fault, slow))

    def _carry_out(self, verb: Verb, do: Callable[[], _Answer]) -> _Answer:
        with self._mutex:
            self.asked[verb] += 1
            actions = self._firsts.get(verb)
            action = actions.popleft() if actions else None
        if action is not None:
            action()
        with self._mutex:
            if self._down is not None:
                raise self._down()
            faults = self._faults.get(verb)
            if not faults:
                return do()
            fault, slow = faults.popleft()
            if fault is _Fault.REPLY_LOST:
                do()
            elif fault is _Fault.DELAYED:
                self._late.append(do)
            raise StoreUnavailable(f"{verb}: {fault.value}", slow=slow)

    def _entry(self, lock_id: str) -> _Entry | None:
        entry = self._entries.get(lock_id)
        if entry is not None and self.clock.now() >= entry.lapses_at + GRACE_SECONDS:
            del self._entries[lock_id]
            return None
        return entry

    def _entry_of(self, lock_id: str, version: object) -> _Entry | None:
        entry = self._entry(lock_id)
        return entry if entry is not None and entry.version == version else None

    def _put(self, lock_id: str, record: bytes, ttl_seconds: float) -> int:
        version = next(self._versions)
        self._entries[lock_id] = _Entry(record, version, self.clock.now() + ttl_seconds)
        return version

    def _replace(self, lock_id: str, entry: _Entry, record: bytes) -> _Entry:
        entry = self._entries[lock_id] = _Entry(record, next(self._versions), entry.lapses_at)
        return entry

    def _stored(self, entry: _Entry | None) -> Stored | None:
        if entry is None:
            return None
        left = entry.lapses_at - self.clock.now()
        return Stored(entry.record, entry.version, left <= 0, left)


def of_parts(parts: SplitResult) -> MemoryStore:
    """Return a new memory store, for `memory://`."""
    if parts.netloc or parts.path or parts.query:
        raise AddressError("the memory store takes no options; use memory://")
    return MemoryStore()
