"""Expiration dates in the server's own time.

memcached counts whole seconds, and one of its threads sets that clock once a
second: while it runs, the clock is behind by less than two seconds. After a
stop (SIGSTOP, a machine that was paused or migrated) other threads carry out
the commands in the sockets before that one has had its turn. "For 60 seconds"
then counts from when the server was stopped:

    we                      memcached                       others
                            12:00:00, stopped
    12:00:30
    ms k T60 … ───────────▶ goes on; by its clock it is
                            12:00:00, so until 12:01:00
                            sets its clock: 12:00:30
    ours until 12:01:30     12:01:00: gone
                            ms k … ◀─────────────────────── theirs, half a minute too early

So commands carry a date in the server's own time. An item that is stored late
ends when it would have ended anyway; one that comes after its date is not
stored.

Each connection asks for the server's time (`stats`) when it is made, and from
time to time. The answer is at most two seconds old, or older if the server has
just been stopped; so the latest possible time counts. A server whose time is
far behind what it was either has been stopped, or its clock has not gone on
while its machine was suspended. A new connection decides between the two: the
thread that sets the clock is the one that accepts connections.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from userlock.stores.memcache.wire import Wire, unexpected
from userlock.stores.stream import number

#: How old a running server's time is at most, in seconds: a fraction that it does not count, a
#: second until it counts the next one, and something for a thread that is late.
MOST_BEHIND = 2.1
#: For how long an answer is good, in seconds. Clocks drift apart by some milliseconds meanwhile.
_GOOD_FOR = 10.0
#: A running server's answers differ by less than two seconds, besides the drift of clocks.
_MOST_DIFFERENCE = 2.5
#: memcached reads less than the first as a duration (up to 30 days), or a server's clock was never
#: set; it cannot count beyond the last.
_FIRST_DATE, LAST_DATE = 1 << 30, (1 << 31) - 1


class ServerTime:
    """The time at a server, as one connection knows it. Used by one caller at a time.

    Attributes:
        now: our clock. It must go on while the machine is suspended, as the server's may.
        started: the time when the server started, by its clock; None if it does not tell.
        ahead: the server's time less ours, at most; None if it does not tell, or was not asked.
        good_until: until when the known time is good, by our clock; `ask` before more is stored.
    """

    __slots__ = ("ahead", "good_until", "now", "started")

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.good_until = math.inf
        self.started: int | None = None
        self.ahead: float | None = None

    async def ask(self, wire: Wire) -> bool:
        """Ask the server for its time; one round trip.

        False if it is far behind what it was: another connection must be asked.
        """
        asked_at = self.now()
        time, uptime = await _times(wire)
        if time is None:
            self.ahead, self.good_until = None, math.inf
            return True
        if uptime is not None:  # both count from one clock: always the same difference
            self.started = time - uptime
        ahead = time + MOST_BEHIND - asked_at
        if self.ahead is not None:
            if ahead < self.ahead - _MOST_DIFFERENCE:
                return False
            ahead = max(ahead, self.ahead)
        self.ahead, self.good_until = ahead, asked_at + _GOOD_FOR
        return True


async def _times(wire: Wire) -> tuple[int | None, int | None]:
    """Return the server's time, and for how long it has run; None where it does not report it."""
    await wire.send(b"stats\r\n")
    time, uptime = b"0", None
    while (line := await wire.read_line()) != b"END":
        if line.startswith(b"STAT time "):
            time = line.removeprefix(b"STAT time ")
        elif line.startswith(b"STAT uptime "):
            uptime = number(line.removeprefix(b"STAT uptime "))
        elif line.startswith((b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")):
            break  # it gives no statistics
        elif not line.startswith(b"STAT "):
            raise unexpected(line)
    wire.finish()
    seconds = number(time)
    return (seconds if seconds >= _FIRST_DATE else None), uptime
