"""Until when a record is to live, in the server's own time.

memcached counts whole seconds, and one of its threads sets that clock once a
second: while it runs, the clock is behind by less than two seconds. After a
stop (SIGSTOP, a machine that was paused or migrated) other threads carry out
what waits in the sockets before that one has had its turn. "For 60 seconds"
then counts from when the server was stopped:

    we                      memcached                       others
                            12:00:00, stopped
    12:00:30
    ms k T60 … ───────────▶ goes on; by its clock it is
                            12:00:00, so until 12:01:00
                            sets its clock: 12:00:30
    ours until 12:01:30     12:01:00: gone
                            ms k … ◀─────────────────────── theirs, half a minute too early

So the server is not told for how long, but until when: a date in its own time,
that it need not look at its clock for. A command that is carried out late ends
when it would have ended anyway; one that comes when its date is over stores
nothing.

How our clock and the server's go together is asked on each connection when it
is made, and from time to time (`stats` says what time it is there). What it
says is at most two seconds old, or older if the server has just been stopped;
so the latest that it may have been counts. A server whose time is far behind
what it was either has been stopped, or its clock has not gone on while its
machine was suspended. A new connection tells: the thread that sets the clock
is the one that takes connections in.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from userlock.stores.memcache.wire import Connection, Refused

#: How old at most the time is that a running server tells, in seconds: a fraction that it does
#: not count, a second until it counts the next one, and something for a thread that is late.
_MOST_BEHIND = 2.1
#: For how long an answer is good, in seconds. Clocks drift apart by some milliseconds meanwhile.
_GOOD_FOR = 10.0
#: What a running server tells differs by less than two seconds, beside what clocks drift apart.
_MOST_DIFFERENCE = 2.5
#: What is no date for memcached (up to 30 days), or none of this age, from a server whose own
#: clock was never set; and what is none any more.
_FIRST_DATE, _LAST_DATE = 1 << 30, (1 << 31) - 1


class ServerTime:
    """The time at a server, as one connection knows it. Used by one thread at a time.

    Args:
        now: our clock. It must go on while the machine is suspended, as the server's may.

    Attributes:
        moment: from when on something lives that is stored next, by our clock. To be set by
            whoever stores it.
        good_until: until when what is known is good, by our clock; `ask` before more is stored.
    """

    __slots__ = ("_ahead", "good_until", "moment", "now")

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.moment = now()
        self.good_until = math.inf
        #: The server's time less ours, at most; None if it does not tell, or was not asked.
        self._ahead: float | None = None

    def ask(self, connection: Connection) -> bool:
        """Ask the server for its time; one round trip.

        False if it is far behind what it was: another connection must be asked.

        Raises:
            OSError, Refused: trouble with the server.
        """
        self.moment = asked_at = self.now()
        told = _unix_time(connection)
        if told is None:
            self._ahead, self.good_until = None, math.inf
            return True
        ahead = told + _MOST_BEHIND - asked_at
        if self._ahead is not None:
            if ahead < self._ahead - _MOST_DIFFERENCE:
                return False
            ahead = max(ahead, self._ahead)
        self._ahead, self.good_until = ahead, asked_at + _GOOD_FOR
        return True

    def until(self, ttl_seconds: float) -> int:
        """Return the expiration to send for an item to live that long from `moment` on, or longer.

        A date; a server that does not tell its time is told seconds, for
        which it has to look at its clock.
        """
        if self._ahead is not None:
            date = math.ceil(self.moment + self._ahead + ttl_seconds)
            if date <= _LAST_DATE:
                return date
        return math.ceil(ttl_seconds + _MOST_BEHIND)


def _unix_time(connection: Connection) -> int | None:
    """Return the server's time; None if it does not report it."""
    connection.send(b"stats\r\n")
    told = None
    while (line := connection.read_line()) != b"END":
        if line.startswith(b"STAT time "):
            told = line[len(b"STAT time ") :]
        elif line.startswith((b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")):
            break  # it gives no statistics
        elif not line.startswith(b"STAT "):
            raise Refused(f"memcached answered {line[:80]!r}")
    connection.finish()
    try:
        date = 0 if told is None else int(told)
    except ValueError:
        raise Refused(f"memcached says that it is {told!r:.80}") from None
    return date if date >= _FIRST_DATE else None
