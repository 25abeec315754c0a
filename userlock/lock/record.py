"""A lock's record: its holder, and its queue. No I/O.

A record is a log. Its first line names the holder, and what happens while it
is held is appended, a line each:

    ["4f01","interactive",1763640000.123,60.0,"web-1/77","POST /answers"]
    +i 4f02 1763640000.150 ["web-2/12","GET /badges"]   4f02 waits, a person
    +b 4f03 1763640000.170 ["jobs-1/9","nightly"]       4f03 waits, batch
    ^ 4f03                                              it has waited long: ranks with people
    = 4f02                                              4f02 is done: it has given up
    ! 4f01 ["another lock",1763640000.2,"4f05"]         the holder waits for another lock, as 4f05
    = 4f01                                              the holder is done: the lock is free
    ? 4f01                                              the free lock is offered to those above

Whoever is next replaces the whole record with one that names it as the holder,
says whom it has succeeded and how (`< 4f01 released`, `lapsed`, or `broken` and
by whom), and goes on with those who still wait. A waiter that comes back after its record was
lost (`~` for `+`) goes before those who began to wait after it did.

A record with an offer (`?`) lives for as long as those who stand above it may
take to claim the lock. Once it has lapsed, they have had their time.

A record comes from a server that others can write to, releases that come later
among them. Whatever stands in it, nothing here raises; lines that make no sense
are passed over, and so are fields behind those that are known.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import NamedTuple

from userlock.lock.lease import Holder, Priority, finite, printable, process_of
from userlock.lock.store import Stored

_PRIORITIES = {b"+i": Priority.INTERACTIVE, b"~i": Priority.INTERACTIVE}
_PRIORITIES |= {b"+b": Priority.BATCH, b"~b": Priority.BATCH}
_LETTERS = {Priority.INTERACTIVE: b"i", Priority.BATCH: b"b"}


class Waiter(NamedTuple):
    """One waiter of a lock, as the record names it, for people to read.

    Attributes:
        token: names the attempt; random.
        priority: "interactive" or "batch".
        since: when it began to wait, in seconds since 1970 by the waiter's clock.
        process: host and process id.
        request: what it is doing (for a web request, its method and path).
        aged: batch that has waited so long that it ranks with people now.
    """

    token: str
    priority: str
    since: float
    process: str
    request: str
    aged: bool


class BlockedOn(NamedTuple):
    """The lock that the holder itself waits for.

    Attributes:
        lock_id: the other lock.
        since: when it began to wait for it, in seconds since 1970 by its clock.
        token: the one it stands in line with there.
    """

    lock_id: str
    since: float
    token: str


class _Place(NamedTuple):
    token: bytes
    priority: Priority
    since: float
    #: What follows the mark in the line; written again as it is.
    rest: bytes
    #: Whether it has lost its place before.
    again: bool


# A crowd's lines are seen again at each look.
@functools.lru_cache(maxsize=2048)
def _place(line: bytes) -> _Place | None:
    """Parse an entry that adds a waiter to the queue; None if it makes no sense."""
    mark, _, rest = line.partition(b" ")
    try:
        token, since, _ = rest.split(b" ", 2)
        return _Place(token, _PRIORITIES[mark], finite(since), rest, mark[:1] == b"~")
    except (KeyError, ValueError):
        return None


def joining(holder: Holder, *, again: bool = False) -> bytes:
    """Return the line that puts a claim in line; `again` after its record was lost."""
    mark = b"~" if again else b"+"
    letter = b"i" if holder.priority == Priority.INTERACTIVE.value else b"b"
    details = json.dumps([holder.process, holder.request[:100]])
    return (
        f"\n{mark.decode()}{letter.decode()} {holder.token} {holder.since:.3f} {details}".encode()
    )


def done(token: str, *, by: str = "") -> bytes:
    """The line that says that a holder or waiter is done; `by` whom, if somebody broke it."""
    note = f" {json.dumps(by)}" if by else ""
    return f"\n= {token}{note}".encode()


def aged(token: str) -> bytes:
    """Return the line that makes a batch waiter rank with people."""
    return f"\n^ {token}".encode()


def blocked(token: str, on: BlockedOn | None) -> bytes:
    """Return the line that says which other lock the holder waits for; None: for none any more."""
    return f"\n! {token} {json.dumps(on)}".encode()


class Record:
    """A lock's record, understood.

    Attributes:
        stored: as it was read.
        lapsed: the lease's time is over.
    """

    __slots__ = (
        "__dict__",
        "_aged",
        "_blocked",
        "_done",
        "_holder_line",
        "_known",
        "_offered_to",
        "_places",
        "_succeeded",
        "stored",
    )

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self._holder_line, *lines = stored.record.split(b"\n")
        self._done: dict[bytes, bytes] = {}
        self._aged: set[bytes] = set()
        self._blocked: dict[bytes, bytes] = {}
        self._places: list[_Place] = []
        self._known: set[bytes] = set()
        self._offered_to: frozenset[bytes] = frozenset()
        self._succeeded = b""
        for line in lines:
            if line[:2] in _PRIORITIES:
                self._line_up(_place(line))
            else:
                self._understand(line)

    def _line_up(self, place: _Place | None) -> None:
        if place is None or place.token in self._known:
            return  # sent twice, after a lost reply
        self._known.add(place.token)
        if place.again:
            self._places.insert(self._where(place), place)
        else:
            self._places.append(place)

    def _understand(self, line: bytes) -> None:
        mark, _, rest = line.partition(b" ")
        if mark == b"=":
            token, _, note = rest.partition(b" ")
            self._done.setdefault(token, note)
        elif mark == b"^":
            self._aged.add(rest)
        elif mark == b"<":
            self._succeeded = rest
        elif mark == b"!":
            token, _, what = rest.partition(b" ")
            self._blocked[token] = what
        elif mark == b"?" and rest == self.holder.token.encode():
            self._offered_to = frozenset(self._known)

    def _where(self, place: _Place) -> int:
        """Before the first one that began to wait later (by the waiters' own clocks)."""
        for index, other in enumerate(self._places):
            if other.since > place.since:
                return index
        return len(self._places)

    # --- the holder -------------------------------------------------------------------------

    @functools.cached_property
    def holder(self) -> Holder:
        """Return the holder that the record names."""
        return Holder.decode(self._holder_line)

    @property
    def lapsed(self) -> bool:
        return self.stored.lapsed

    @property
    def released(self) -> bool:
        """Return whether the holder has released the lock."""
        return self.holder.token.encode() in self._done

    @property
    def free(self) -> bool:
        """Return whether the lock is free for the first waiter to claim."""
        return self.lapsed or self.released

    @property
    def left_by(self) -> bytes:
        """Return the token of who had the lock last: whoever has only offered it has not had it."""
        return self._origin().partition(b" ")[0]

    def succeeds_released(self, token: str) -> bool:
        """Return whether the holder has taken the lock after `token` released it."""
        return self._succeeded == b"%b released" % token.encode()

    def succeeds_broken(self, token: str) -> str:
        """Return who broke the lock of `token` before the holder took it; empty if nobody did."""
        how = b"%b broken " % token.encode()
        return _breaker(self._succeeded[len(how) :]) if self._succeeded.startswith(how) else ""

    @property
    def broken_by(self) -> str:
        """Return who broke the lock, if somebody did."""
        return _breaker(self._done.get(self.holder.token.encode(), b""))

    @property
    def blocked_on(self) -> BlockedOn | None:
        """Return the lock that the holder itself waits for, as far as the record names it."""
        what = self._blocked.get(self.holder.token.encode())
        if what is None:
            return None
        try:
            lock_id, since, token, *_ = json.loads(what)
            return BlockedOn(str(lock_id), finite(since), str(token)) if lock_id else None
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None

    # --- who waits --------------------------------------------------------------------------

    @functools.cached_property
    def _line(self) -> list[_Place]:
        """Return the waiters, in the order of service."""
        done = self._done
        urgent: list[_Place] = []
        others: list[_Place] = []
        for place in self._places:
            if place.token not in done:
                (urgent if self._urgent(place) else others).append(place)
        return urgent + others

    def _urgent(self, place: _Place) -> bool:
        return place.priority is Priority.INTERACTIVE or place.token in self._aged

    def position_of(self, token: str) -> int | None:
        """Return the number of waiters before `token`; None if it is not queued."""
        own = token.encode()
        for index, place in enumerate(self._line):
            if place.token == own:
                return index
        return None

    def _ahead_of(self, token: str) -> list[_Place]:
        """Return the waiters before `token`: all, if it is not queued."""
        return self._line[: self.position_of(token)]

    def processes_ahead_of(self, token: str) -> int:
        """Of how many processes those are who are served before `token`."""
        return len({process_of(each) for each in self.tokens_ahead_of(token)})

    def tokens_ahead_of(self, token: str) -> frozenset[bytes]:
        """Return the tokens of the waiters before `token`."""
        return frozenset(place.token for place in self._ahead_of(token))

    def is_turn_of(self, token: str) -> bool:
        """Return whether the lock is free, and the waiters before `token` had time to claim it.

        In line or not: for who is not in line, everybody there comes first.
        """
        ahead = self._ahead_of(token) if self.free else None
        if not ahead:
            return ahead is not None
        return self.lapsed and all(place.token in self._offered_to for place in ahead)

    def can_be_offered_by(self, token: str) -> bool:
        """Return whether the lock is free, others are queued, and no reservation runs for them."""
        offered = self._offered_to and not self.lapsed
        return self.free and not offered and self.processes_besides(token) > 0

    def processes_besides(self, token: str) -> int:
        """Of how many processes those are who wait, not counting `token`."""
        own = token.encode()
        return len({process_of(place.token) for place in self._line if place.token != own})

    @property
    def empty(self) -> bool:
        """Return whether nobody waits."""
        return not self._line

    @property
    def waits_for_a_person(self) -> bool:
        """Return whether an interactive request waits, or batch work that ranks as one."""
        return any(self._urgent(place) for place in self._line)

    def waiters(self) -> list[Waiter]:
        """Return the waiters, in the order of service."""
        return [
            Waiter(
                printable(place.token.decode("latin-1")),
                place.priority.value,
                place.since,
                *_details(place),
                place.token in self._aged,
            )
            for place in self._line
        ]

    # --- what comes next --------------------------------------------------------------------

    def succeeded_by(self, claim_record: bytes, token: str, *, passing: bool = False) -> bytes:
        """Return the record in which the claim holds the lock, and the others wait on.

        Args:
            claim_record: the claim's own first line.
            token: its token.
            passing: those ahead of it have not taken their turn, and are dropped: dead, or
                paused for so long that they have to line up again.
        """
        own = token.encode()
        line = self._line[len(self._ahead_of(token)) :] if passing else self._line
        begin = claim_record + b"\n< " + self._origin()
        return self._record(begin, (place for place in line if place.token != own))

    def _origin(self) -> bytes:
        """Whom the next one has the lock from, and how. Who has offered it has never had it."""
        if self._offered_to:
            return self._succeeded
        predecessor = self.holder.token.encode()
        note = self._done.get(predecessor)
        how = b"lapsed" if note is None else b"broken " + note if note else b"released"
        return b"%b %b" % (predecessor, how)

    def offered_by(self, claim_record: bytes, token: str, *, leaving: str = "") -> bytes:
        """The record in which the claim, not served itself, offers the lock to those in line.

        Args:
            claim_record: the claim's own first line.
            token: its token; one that is nowhere in line.
            leaving: who is in line no longer.
        """
        left = leaving.encode()
        begin = claim_record + b"\n< " + self._origin()
        record = self._record(begin, (place for place in self._line if place.token != left))
        return record + done(token) + b"\n? " + token.encode()

    def compacted(self) -> bytes:
        """Return the same without those who are done."""
        own = self.holder.token.encode()
        begin = self._holder_line
        if self._succeeded:
            begin += b"\n< " + self._succeeded
        if own in self._blocked:
            begin += b"\n! " + own + b" " + self._blocked[own]
        return self._record(begin, self._line)

    def _record(self, begin: bytes, line: Iterable[_Place]) -> bytes:
        return b"".join([begin, *(self._again(place) for place in line)])

    def _again(self, place: _Place) -> bytes:
        line = b"\n+%b %b" % (_LETTERS[place.priority], place.rest)
        return line + b"\n^ " + place.token if place.token in self._aged else line


def _breaker(note: bytes) -> str:
    """Return who broke a lock, from the entry that ended it."""
    if not note:
        return ""
    try:
        return printable(json.loads(note))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return "somebody"


def _details(place: _Place) -> tuple[str, str]:
    try:
        process, request, *_ = json.loads(place.rest.split(b" ", 2)[2])
        return printable(process), printable(request)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return "", ""
