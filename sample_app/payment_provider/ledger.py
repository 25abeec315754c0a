"""The provider's charges by key, and its moods. No I/O.

Keys are honoured as Stripe does (https://docs.stripe.com/api/idempotent_requests): the
first result of a key is stored, refusals included, and given again; other parameters
under a stored key are refused. Trouble that comes before a result stores nothing.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from typing import Any


class Mood(enum.StrEnum):
    """The provider's behaviour towards new charges. A stored result is given in any mood that
    answers."""

    CHARGES = "charges"
    REFUSES = "refuses"
    TIMES_OUT = "times-out"
    LOSES_REPLY = "loses-reply"
    IS_DOWN = "is-down"


class Fate(enum.Enum):
    """The end of a request."""

    ANSWERED = enum.auto()
    HANGS = enum.auto()
    CUT_OFF = enum.auto()


@dataclass(frozen=True)
class Reply:
    """The reply to a request: its status and document, or the reason why there is none."""

    status: int
    document: dict[str, Any]
    fate: Fate = Fate.ANSWERED


@dataclass
class _Entry:
    """A key: its parameters, its result once there is one, and how often it was sent."""

    params: tuple[int, str]
    result: Reply | None = None
    asked: int = 0


@dataclass
class Ledger:
    """All keys, in the order in which they came. Thread-safe."""

    mood: Mood = Mood.CHARGES
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def charge(self, key: str, cents: int, reference: str) -> Reply:
        """Charge once for each key."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry((cents, reference)))
            if entry.params != (cents, reference):
                return Reply(400, {"error": "the key belongs to another charge"})
            entry.asked += 1
            if self.mood is Mood.IS_DOWN:
                return Reply(503, {"error": "down for maintenance"})
            if self.mood is Mood.TIMES_OUT:
                return Reply(0, {}, Fate.HANGS)
            if entry.result is not None:
                return entry.result
            if self.mood is Mood.REFUSES:
                entry.result = Reply(402, {"error": "the card is declined"})
            else:
                number = len([each for each in self._entries.values() if each.result]) + 1
                entry.result = Reply(201, {"id": f"ch-{number}", "cents": cents})
            if self.mood is Mood.LOSES_REPLY:
                return Reply(0, {}, Fate.CUT_OFF)
            return entry.result

    def become(self, mood: Mood) -> None:
        """Change the mood."""
        with self._lock:
            self.mood = mood

    def as_json(self) -> dict[str, Any]:
        """Return the mood and all keys, the latest first."""
        with self._lock:
            keys = [
                {
                    "key": key,
                    "cents": entry.params[0],
                    "reference": entry.params[1],
                    "asked": entry.asked,
                    "status": None if entry.result is None else entry.result.status,
                    "charge": None if entry.result is None else entry.result.document.get("id"),
                }
                for key, entry in self._entries.items()
            ]
            return {"mood": self.mood.value, "keys": keys[::-1]}
