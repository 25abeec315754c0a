"""The memory store: records within one process, for tests.

Behaves as a real store does in every respect that the contract names (it
passes the same suite), and adds hooks to play the accidents that real ones
have. Some befall the whole store, until they are taken back:

    evict, forget_everything         data is lost
    go_down, come_back               nothing is answered
    room                             records cannot grow

others befall the next command of a kind, once for each call:

    lose_command(verb)               it never arrives, and the caller cannot know
    lose_reply(verb)                 it is carried out, and the caller cannot know
    delay(verb), then arrive()       it is carried out later
    before(verb, action)             something else happens first
"""

from __future__ import annotations

import collections
import enum
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.store import GRACE_SECONDS, Stored, StoreUnavailable, Swap
from userlock.stores.memory_operators import ForOperators

#: The things that a store can be asked to do.
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


class _Accident(NamedTuple):
    fault: _Fault
    slow: bool


class MemoryStore(ForOperators):
    """A lease store in this process's memory. Thread-safe. Not for production.

    Args:
        clock: for the time; tests hand in a manual one.

    Attributes:
        clock: as it was handed in.
        asked: how often each verb was asked for, whether or not it was answered.
        room: how long a record may get by `append`, in bytes; lines beyond that are left out.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.asked: collections.Counter[Verb] = collections.Counter()
        self.room = math.inf
        self._mutex = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        # Goes on through `forget_everything`: a version never comes back, as
        # it would in a memcached, whose numbers begin again at 1.
        self._versions = itertools.count(1)
        self._down: StoreUnavailable | None = None
        self._accidents: dict[Verb, collections.deque[_Accident]] = {}
        self._firsts: dict[Verb, collections.deque[Callable[[], object]]] = {}
        self._late: list[Callable[[], object]] = []

    # --- the store --------------------------------------------------------------------------

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        """As `LeaseStore.create`."""

        def do() -> int | None:
            if self._entry(lock_id) is not None:
                return None
            return self._put(lock_id, record, ttl_seconds)

        return self._carry_out("create", do)

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        """As `LeaseStore.read`."""
        return self._carry_out("read", lambda: self._stored(self._entry(lock_id)))

    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        """As `LeaseStore.swap`."""

        def do() -> int | None:
            entry = self._entry(lock_id)
            if entry is None or entry.version != version:
                return None
            return self._put(lock_id, record, ttl_seconds)

        return self._carry_out("swap", do)

    def swap_many(self, swaps: Sequence[Swap]) -> list[object | StoreUnavailable | None]:
        """As `BatchStore.swap_many`. An accident befalls each command by itself."""
        outcomes: list[object | StoreUnavailable | None] = []
        for swap in swaps:
            try:
                outcomes.append(self.swap(*swap))
            except StoreUnavailable as trouble:
                outcomes.append(trouble)
        return outcomes

    def rewrite(self, lock_id: str, version: object, record: bytes) -> int | None:
        """As `RewritingStore.rewrite`."""

        def do() -> int | None:
            entry = self._entry(lock_id)
            if entry is None or entry.version != version:
                return None
            new = next(self._versions)
            self._entries[lock_id] = _Entry(record, new, entry.lapses_at)
            return new

        return self._carry_out("rewrite", do)

    def remove(self, lock_id: str, version: object) -> bool:
        """As `LeaseStore.remove`."""

        def do() -> bool:
            entry = self._entry(lock_id)
            if entry is None or entry.version != version:
                return False
            del self._entries[lock_id]
            return True

        return self._carry_out("remove", do)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        """As `LeaseStore.append`."""

        def do() -> Stored | None:
            entry = self._entry(lock_id)
            if entry is None or len(entry.record + line) > self.room:
                return self._stored(entry)
            entry = _Entry(entry.record + line, next(self._versions), entry.lapses_at)
            self._entries[lock_id] = entry
            return self._stored(entry)

        return self._carry_out("append", do)

    def close(self) -> None:
        """Nothing to give up: the records stay."""

    # --- accidents that befall the whole store ----------------------------------------------

    def evict(self, lock_id: str) -> bool:
        """Lose one record, as a memcached short of memory does; whether there was one, in time."""
        with self._mutex:
            entry = self._entries.pop(lock_id, None)
            return entry is not None and self.clock.now() < entry.lapses_at

    def forget_everything(self) -> None:
        """Lose every record, as a memcached that is restarted does.

        No version from before will match again. Commands that are late stay so.
        """
        with self._mutex:
            self._entries.clear()

    def go_down(
        self, reason: str = "the store is down", *, sent: bool = True, slow: bool = False
    ) -> None:
        """Answer nothing, and do nothing, until `come_back`.

        Args:
            reason: what `StoreUnavailable` shall say.
            sent: the same.
            slow: the same.
        """
        with self._mutex:
            self._down = StoreUnavailable(reason, sent=sent, slow=slow)

    def come_back(self) -> None:
        """Answer again."""
        with self._mutex:
            self._down = None

    # --- accidents that befall the next command of a kind -----------------------------------

    def lose_command(self, verb: Verb, *, slow: bool = False) -> None:
        """Let the next such command be lost on its way: not carried out, now or later.

        Args:
            verb: which kind of command.
            slow: the caller sees a time-out; by default, a broken connection.
        """
        self._plan(verb, _Accident(_Fault.COMMAND_LOST, slow))

    def lose_reply(self, verb: Verb, *, slow: bool = False) -> None:
        """Let the reply to the next such command be lost: it is carried out all the same.

        Args:
            verb: which kind of command.
            slow: the caller sees a time-out; by default, a broken connection.
        """
        self._plan(verb, _Accident(_Fault.REPLY_LOST, slow))

    def to_come(self) -> set[Verb]:
        """Return the kinds of commands that an accident waits for, which nobody has sent yet."""
        with self._mutex:
            return {verb for verb, accidents in self._accidents.items() if accidents}

    def delay(self, verb: Verb) -> None:
        """Let the caller of the next such command time out, and the command come by `arrive`."""
        self._plan(verb, _Accident(_Fault.DELAYED, slow=True))

    def arrive(self) -> list[object]:
        """Carry out the commands that are late, in their order; what each would have answered.

        Times to live count from now, as they do at a server.
        """
        with self._mutex:
            late, self._late = self._late, []
            return [do() for do in late]

    def before(self, verb: Verb, action: Callable[[], object]) -> None:
        """Let `action` happen when the next such command is on its way, before it arrives.

        It may use the store: this is how a test lets another client in
        between two commands of one that it watches.
        """
        with self._mutex:
            self._firsts.setdefault(verb, collections.deque()).append(action)

    # --- within -----------------------------------------------------------------------------

    def _plan(self, verb: Verb, accident: _Accident) -> None:
        with self._mutex:
            self._accidents.setdefault(verb, collections.deque()).append(accident)

    def _carry_out(self, verb: Verb, do: Callable[[], _Answer]) -> _Answer:
        with self._mutex:
            self.asked[verb] += 1
            actions = self._firsts.get(verb)
            action = actions.popleft() if actions else None
        if action is not None:
            action()
        with self._mutex:
            if self._down is not None:
                # A new one each time: an exception gathers the traceback of
                # every place that it passes.
                down = self._down
                raise StoreUnavailable(down.reason, sent=down.sent, slow=down.slow)
            accidents = self._accidents.get(verb)
            if not accidents:
                return do()
            accident = accidents.popleft()
            if accident.fault is _Fault.REPLY_LOST:
                do()
            elif accident.fault is _Fault.DELAYED:
                self._late.append(do)
            raise StoreUnavailable(f"{verb}: {accident.fault.value}", slow=accident.slow)

    def _entry(self, lock_id: str) -> _Entry | None:
        entry = self._entries.get(lock_id)
        if entry is not None and self.clock.now() >= entry.lapses_at + GRACE_SECONDS:
            del self._entries[lock_id]
            return None
        return entry

    def _put(self, lock_id: str, record: bytes, ttl_seconds: float) -> int:
        version = next(self._versions)
        self._entries[lock_id] = _Entry(record, version, self.clock.now() + ttl_seconds)
        return version

    def _stored(self, entry: _Entry | None) -> Stored | None:
        if entry is None:
            return None
        return Stored(entry.record, entry.version, self.clock.now() >= entry.lapses_at)
