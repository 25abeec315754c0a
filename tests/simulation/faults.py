"""The faults of a command on its way from a simulated process to the store."""

from __future__ import annotations

import enum

#: The reply timeout of the memcached store, in seconds.
REPLY_TIMEOUT = 0.3


class Fault(enum.Enum):
    NONE = "nothing"
    #: The server refuses connections: nothing was sent.
    REFUSED = "refused"
    #: The connection breaks, and the command never arrives.
    COMMAND_LOST = "command lost"
    #: It is executed; the connection breaks instead of a reply.
    REPLY_LOST = "reply lost"
    #: It never arrives, and the caller times out.
    COMMAND_SWALLOWED = "command swallowed"
    #: It is executed, and the caller times out.
    REPLY_SWALLOWED = "reply swallowed"
    #: The caller times out; the command is executed when it arrives.
    LATE = "late"

    @property
    def slow(self) -> bool:
        """Return whether the caller waits for the whole reply timeout."""
        return self in (Fault.COMMAND_SWALLOWED, Fault.REPLY_SWALLOWED, Fault.LATE)

    @property
    def executed(self) -> bool:
        return self in (Fault.NONE, Fault.REPLY_LOST, Fault.REPLY_SWALLOWED)
