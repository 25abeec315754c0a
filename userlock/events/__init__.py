"""Events as plain facts, and their listeners.

A listener is any callable that takes an event. A listener that raises is
logged and otherwise ignored: nothing that watches the lock can break it.
"""

from __future__ import annotations

from userlock.events.lines import log_event
from userlock.events.listeners import LISTENERS, Listener, Listeners
from userlock.events.types import (
    Acquired,
    BlindOverwrite,
    Broken,
    Confirmed,
    Conflict,
    Contended,
    Deadlock,
    Degraded,
    Event,
    Extended,
    LeaseLost,
    OutOfOrder,
    Released,
    StaleObject,
    StaleWrite,
    TimedOut,
    Unavailable,
    Violation,
)

__all__ = [
    "LISTENERS",
    "Acquired",
    "BlindOverwrite",
    "Broken",
    "Confirmed",
    "Conflict",
    "Contended",
    "Deadlock",
    "Degraded",
    "Event",
    "Extended",
    "LeaseLost",
    "Listener",
    "Listeners",
    "OutOfOrder",
    "Released",
    "StaleObject",
    "StaleWrite",
    "TimedOut",
    "Unavailable",
    "Violation",
    "log_event",
]
