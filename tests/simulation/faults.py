"""What can happen to one command on its way from a simulated process to the store."""

from __future__ import annotations

import enum

#: As long as the memcached store waits for a reply, in seconds.
REPLY_TIMEOUT = 0.3


class Fault(enum.Enum):
    """What happens to one command."""

    NONE = "nothing"
    #: The server refuses connections: nothing was sent.
    REFUSED = "refused"
    #: The connection breaks, and the command never arrives.
    COMMAND_LOST = "command lost"
    #: It is carried out; the connection breaks instead of a reply.
    REPLY_LOST = "reply lost"
    #: It never arrives, and the caller times out.
    COMMAND_SWALLOWED = "command swallowed"
    #: It is carried out, and the caller times out.
    REPLY_SWALLOWED = "reply swallowed"
    #: The caller times out; the command is carried out whenever it arrives.
    LATE = "late"

    @property
    def slow(self) -> bool:
        """Whether the caller waits for as long as it ever does."""
        return self in (Fault.COMMAND_SWALLOWED, Fault.REPLY_SWALLOWED, Fault.LATE)

    @property
    def carried_out(self) -> bool:
        """Whether the store does as it is told, at once."""
        return self in (Fault.NONE, Fault.REPLY_LOST, Fault.REPLY_SWALLOWED)
