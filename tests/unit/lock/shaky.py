"""A store with faults at chosen commands."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.faults import Fault
from userlock.clock import Clock
from userlock.lock.store import Stored, StoreUnavailable
from userlock.stores.memory import MemoryStore, Verb

#: The number of the command for each fault, from 1.
Plan = Mapping[int, Fault]


class SteppedStore(MemoryStore):
    """A memory store that calls `_befall` before each command."""

    def _befall(self, verb: Verb, lock_id: str) -> None:
        raise NotImplementedError

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        self._befall("create", lock_id)
        return super().create(lock_id, record, ttl_seconds)

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        self._befall("read", lock_id)
        return super().read(lock_id, hurry=hurry)

    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        self._befall("swap", lock_id)
        return super().swap(lock_id, version, record, ttl_seconds)

    def remove(self, lock_id: str, version: object) -> bool:
        self._befall("remove", lock_id)
        return super().remove(lock_id, version)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        self._befall("append", lock_id)
        return super().append(lock_id, line)


class ShakyStore(SteppedStore):
    """A memory store with planned faults."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._plan: Plan = {}
        self.log: list[tuple[Verb, Fault]] = []

    def shake(self, plan: Plan) -> None:
        self._plan = plan
        self.log = []

    def _befall(self, verb: Verb, lock_id: str) -> None:
        fault = self._plan.get(len(self.log) + 1, Fault.NONE)
        self.log.append((verb, fault))
        match fault:
            case Fault.COMMAND_LOST | Fault.COMMAND_SWALLOWED:
                self.lose_command(verb, slow=fault.slow)
            case Fault.REPLY_LOST | Fault.REPLY_SWALLOWED:
                self.lose_reply(verb, slow=fault.slow)
            case Fault.LATE:
                self.delay(verb)
            case Fault.REFUSED:
                raise StoreUnavailable("connection refused", sent=False)
