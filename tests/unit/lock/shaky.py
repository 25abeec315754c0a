"""A store on which accidents befall chosen steps of whatever is done with it."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from userlock.clock import Clock
from userlock.lock.store import Stored, StoreUnavailable
from userlock.stores.memory import MemoryStore, Verb


class Mishap(enum.Enum):
    """What happens to one command."""

    COMMAND_LOST = "command lost"
    REPLY_LOST = "reply lost"
    COMMAND_SWALLOWED = "command swallowed, slowly"
    REPLY_SWALLOWED = "reply swallowed, slowly"
    DELAYED = "late"
    REFUSED = "never sent"


#: The step at which each one happens, the first command being step 1.
Plan = Mapping[int, Mishap]


class ShakyStore(MemoryStore):
    """A memory store whose accidents are planned by step.

    Attributes:
        log: the commands since `shake`, with what befell them.
    """

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._mishaps: Plan = {}
        self.log: list[tuple[Verb, Mishap | None]] = []

    def shake(self, plan: Plan) -> None:
        """Let this happen from now on; nothing any more, if it is empty."""
        self._mishaps = plan
        self.log = []

    def _befall(self, verb: Verb) -> None:
        mishap = self._mishaps.get(len(self.log) + 1)
        self.log.append((verb, mishap))
        match mishap:
            case Mishap.COMMAND_LOST | Mishap.COMMAND_SWALLOWED:
                self.lose_command(verb, slow=mishap is Mishap.COMMAND_SWALLOWED)
            case Mishap.REPLY_LOST | Mishap.REPLY_SWALLOWED:
                self.lose_reply(verb, slow=mishap is Mishap.REPLY_SWALLOWED)
            case Mishap.DELAYED:
                self.delay(verb)
            case Mishap.REFUSED:
                raise StoreUnavailable("connection refused", sent=False)

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        self._befall("create")
        return super().create(lock_id, record, ttl_seconds)

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        self._befall("read")
        return super().read(lock_id, hurry=hurry)

    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        self._befall("swap")
        return super().swap(lock_id, version, record, ttl_seconds)

    def rewrite(self, lock_id: str, version: object, record: bytes) -> int | None:
        self._befall("rewrite")
        return super().rewrite(lock_id, version, record)

    def remove(self, lock_id: str, version: object) -> bool:
        self._befall("remove")
        return super().remove(lock_id, version)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        self._befall("append")
        return super().append(lock_id, line)
