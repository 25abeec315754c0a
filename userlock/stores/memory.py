"""The memory store: records within one process, for tests.

Keeps every promise of the contract, and adds hooks that play the faults of real
stores: of the whole store (`evict`, `forget_everything`, `go_down`, `come_back`,
`room`), or of the next command of a kind, once for each call (`lose_command`,
`lose_reply`, `delay` and `arrive`, `before`).
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict, deque
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
from userlock.waits import Bell, with_mutex

Verb = Literal["create", "read", "swap", "remove", "append"]

_Answer = TypeVar("_Answer")

_COMMAND_LOST = "the command was lost"
_REPLY_LOST = "the reply was lost"
_DELAYED = "the command is late"


class _Entry(NamedTuple):
    record: bytes
    version: int
    lapses_at: float


class _WakeUps(WakeUps):
    """The bells of the waiters, by token."""

    def __init__(self) -> None:
        super().__init__()
        self.bells: dict[str, Bell] = {}

    async def begin(self, lock_id: str, token: str, bell: Bell) -> None:
        self.bells[token] = bell

    def end(self, token: str) -> None:
        self.bells.pop(token, None)


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
        self.wake_ups = _WakeUps() if wakes else None
        self.asked: Counter[Verb] = Counter()
        self.room: float = MAX_RECORD_BYTES
        self._mutex = threading.RLock()  # the garbage collector may release a lock at any time
        self._entries: dict[str, _Entry] = {}
        # Goes on through `forget_everything`; memcached's numbers begin again at 1.
        self._versions = itertools.count(1)
        self._down: Callable[[], StoreUnavailable] | None = None
        #: What befalls the next commands, and whether it is slow; what is called before them.
        self._faults: dict[Verb, deque[tuple[str, bool]]] = defaultdict(deque)
        self._firsts: dict[Verb, deque[Callable[[], object]]] = defaultdict(deque)
        self._late: list[Callable[[], object]] = []

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
        if stored is not None and isinstance(self.wake_ups, _WakeUps):
            bell = self.wake_ups.bells.get(Record(stored).next_token())
            if bell is not None:
                self.wake_ups.woken(bell, stored)
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
        # A new error each time: an exception gathers the traceback of every place that it passes.
        self._down = lambda: StoreUnavailable(reason, sent=sent, slow=slow)

    def come_back(self) -> None:
        """Answer again."""
        self._down = None

    # --- faults of the next command of a kind -----------------------------------------------

    def lose_command(self, verb: Verb, *, slow: bool = False) -> None:
        """Lose the next such command on its way: it is not carried out, now or later.

        The caller sees a broken connection; `slow`: a time-out.
        """
        self._faults[verb].append((_COMMAND_LOST, slow))

    def lose_reply(self, verb: Verb, *, slow: bool = False) -> None:
        """Lose the reply to the next such command, which is carried out. See `lose_command`."""
        self._faults[verb].append((_REPLY_LOST, slow))

    def to_come(self) -> set[Verb]:
        """Return the kinds of commands that a planned fault still waits for."""
        return {verb for verb, faults in list(self._faults.items()) if faults}

    def delay(self, verb: Verb) -> None:
        """Let the next such command time out; `arrive` carries it out."""
        self._faults[verb].append((_DELAYED, True))

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
        self._firsts[verb].append(action)

    def _carry_out(self, verb: Verb, do: Callable[[], _Answer]) -> _Answer:
        action = self._asked(verb)
        if action is not None:
            action()
        return self._answer(verb, do)

    @with_mutex
    def _asked(self, verb: Verb) -> Callable[[], object] | None:
        self.asked[verb] += 1
        actions = self._firsts[verb]
        return actions.popleft() if actions else None

    @with_mutex
    def _answer(self, verb: Verb, do: Callable[[], _Answer]) -> _Answer:
        if self._down is not None:
            raise self._down()
        faults = self._faults[verb]
        if not faults:
            return do()
        fault, slow = faults.popleft()
        if fault == _REPLY_LOST:
            do()
        elif fault == _DELAYED:
            self._late.append(do)
        raise StoreUnavailable(f"{verb}: {fault}", slow=slow)

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
