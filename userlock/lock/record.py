"""A lock's record: its holder and its queue. No I/O.

A record is a log. Its first entry names the holder. Events during the hold are
appended, one entry per line:

    ["4f01","interactive",1763640000.123,60.0,"web-1/77","POST /answers"]
    +i 4f02 1763640000.150 ["web-2/12","GET /badges"]   4f02 waits, interactive
    +b 4f03 1763640000.170 ["jobs-1/9","nightly"]       4f03 waits, batch
    ^ 4f03                                              4f03 has aged: ranks as interactive
    = 4f02                                              4f02 is done: it has timed out
    ! 4f01 ["another lock",1763640000.2,"4f05"]         the holder waits for another lock, as 4f05
    = 4f01                                              the holder is done: the lock is free
    ? 4f01                                              the free lock is reserved for its queue
    #                                                   a change without a meaning, for a fence

The next holder replaces the whole record. Its record names it as the holder,
names its predecessor and how that lease ended (`< 4f01 released`, `lapsed`, or
`broken` and by whom), and keeps the rest of the queue. A waiter that queues
again after its record was lost (`~` for `+`) goes before those that began to
wait after it.

A reservation (`?`) lives for as long as the waiters above it may need to claim
the lock. Once it has lapsed, other callers may pass them.

A record comes from a server that others can write to, later releases among
them. Nothing here raises, whatever the record contains. Entries that make no
sense are ignored, and so are fields behind the known ones, lines that are too
long to be ours, and waiters above 200. A record that is too long as
a whole counts as another program's.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable
from typing import NamedTuple

from userlock.lock.lease import Holder, Priority, check_lock_id, finite, printable, process_of
from userlock.lock.store import MAX_RECORD_BYTES, Stored

#: How long a free lock waits for the first waiter, for each process that is queued ahead.
PATIENCE_SECONDS = 0.25
#: Length above which a record may be worth compacting, in bytes.
_LONG_BYTES = 32_000
#: The longest line of ours: a lock id of 1,500 characters takes 12 bytes each, as JSON.
_MOST_LINE_BYTES = 20_000
#: The waiters that are read. Later ones poll without a position: a record of thousands of forged
#: lines must not take the time of other locks.
MOST_WAITERS = 200

#: The entry that makes a new version of a record, and changes nothing else.
CHANGE = b"\n#"

_PRIORITIES = {b"+i": Priority.INTERACTIVE, b"~i": Priority.INTERACTIVE}
_PRIORITIES |= {b"+b": Priority.BATCH, b"~b": Priority.BATCH}


class Waiter(NamedTuple):
    """One waiter of a lock, as the record names it, for display.

    Attributes:
        token: names the attempt; random.
        priority: "interactive" or "batch".
        since: start of the wait, in seconds since 1970 by the waiter's clock.
        process: host and process id.
        request: its task; for a web request, method and path.
        aged: a batch waiter that has waited so long that it ranks as interactive.
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
        since: start of that wait, in seconds since 1970 by the holder's clock.
        token: the holder's token in the queue of the other lock.
    """

    lock_id: str
    since: float
    token: str


class _Entry(NamedTuple):
    """A waiter in the queue."""

    token: bytes
    priority: Priority
    since: float
    #: Its details, as JSON.
    details: bytes
    #: The same in the next record.
    copy: bytes
    #: Whether the waiter has lost its position before.
    again: bool


def _entry(line: bytes) -> _Entry | None:
    """Return the entry that adds a waiter to the queue; None if it makes no sense."""
    mark, _, rest = line.partition(b" ")
    try:
        token, since, details = rest.split(b" ", 2)
        copy = b"\n+%b %b" % (mark[1:], rest)
        return _Entry(token, _PRIORITIES[mark], finite(since), details, copy, mark[:1] == b"~")
    except (KeyError, ValueError):
        return None


def _in_order(entries: Iterable[_Entry]) -> list[_Entry]:
    """Return entries with those that queued again where they began to wait."""
    found: list[_Entry] = []
    #: For each entry the latest begin of a wait up to there: ascending, so it can be searched.
    latest: list[float] = []
    for entry in entries:
        index = len(found)
        since = max(entry.since, latest[-1]) if latest else entry.since
        if entry.again:  # before the first one that began to wait later, by the waiters' clocks
            index = bisect.bisect_right(latest, entry.since)
            since = entry.since
        found.insert(index, entry)
        latest.insert(index, since)
    return found


def joining(holder: Holder, *, again: bool = False) -> bytes:
    """Return the entry that puts a claim in the queue; `again` after its record was lost."""
    mark = "~" if again else "+"
    letter = "i" if holder.priority == Priority.INTERACTIVE.value else "b"
    details = json.dumps([holder.process, holder.request[:100]])
    return f"\n{mark}{letter} {holder.token} {holder.since:.3f} {details}".encode()


def done(token: str, *, by: str = "") -> bytes:
    """Return the entry that ends a hold or a wait; `by`: the operator who broke the lock."""
    note = f" {json.dumps(by)}" if by else ""
    return f"\n= {token}{note}".encode()


def aged(token: str) -> bytes:
    """Return the entry that makes a batch waiter rank as interactive."""
    return f"\n^ {token}".encode()


def blocked(token: str, on: BlockedOn | None) -> bytes:
    """Return the entry that names the lock the holder waits for; None: it waits for none."""
    return f"\n! {token} {json.dumps(on)}".encode()


class Record:
    """A parsed record.

    Args:
        stored: the record as it was read.

    Attributes:
        stored: as given.
        holder: the holder that the record names.
    """

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        text = stored.record
        if len(text) > MAX_RECORD_BYTES:
            text = b""  # no store gave it room: another program's, so nobody can take the lock
        self._holder_line, *lines = text.split(b"\n")
        if len(self._holder_line) > _MOST_LINE_BYTES:
            self._holder_line, lines = b"", []
        self.holder = Holder.decode(self._holder_line)
        self._done: dict[bytes, bytes] = {}
        self._aged: dict[bytes, None] = {}
        self._blocked: dict[bytes, bytes] = {}
        self._predecessor = b""
        self._reserved_for: frozenset[bytes] = frozenset()
        waiting: dict[bytes, _Entry] = {}
        for line in lines:
            if len(line) <= _MOST_LINE_BYTES:
                self._parse(line, waiting)
        #: The waiters, in the order of service.
        self._queue = _in_order(waiting.values())
        self._queue.sort(key=lambda entry: not self._ranks_as_interactive(entry))

    def _parse(self, line: bytes, waiting: dict[bytes, _Entry]) -> None:
        mark, _, rest = line.partition(b" ")
        if mark in _PRIORITIES:
            entry = _entry(line) if len(waiting) < MOST_WAITERS else None
            # It may have been sent twice, after a lost reply.
            if entry is not None and entry.token not in self._done:
                waiting.setdefault(entry.token, entry)
        elif mark == b"=":
            token, _, note = rest.partition(b" ")
            self._done.setdefault(token, note)
            waiting.pop(token, None)
        elif mark == b"^":
            self._aged[rest] = None
        elif mark == b"<":
            self._predecessor = rest
        elif mark == b"!":
            token, _, other = rest.partition(b" ")
            self._blocked[token] = other
        elif mark == b"?" and rest == self.holder.token.encode():
            self._reserved_for = frozenset(waiting)

    # --- the holder -------------------------------------------------------------------------

    @property
    def lapsed(self) -> bool:
        """Return whether the lease's time is over."""
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
    def last_held_by(self) -> bytes:
        """Return the token of the last holder. A caller that only reserved the lock is none."""
        return self._origin().partition(b" ")[0]

    def succeeds_released(self, token: str) -> bool:
        """Return whether the holder has taken the lock after `token` released it."""
        return self._predecessor == b"%b released" % token.encode()

    def succeeds_broken(self, token: str) -> str:
        """Return the operator who broke the lease of `token` before this holder; empty if none."""
        how = b"%b broken " % token.encode()
        return _operator(self._predecessor[len(how) :]) if self._predecessor.startswith(how) else ""

    @property
    def broken_by(self) -> str:
        """Return the operator who broke the lock; empty if none did."""
        return _operator(self._done.get(self.holder.token.encode(), b""))

    @property
    def blocked_on(self) -> BlockedOn | None:
        """Return the lock that the holder itself waits for, as far as the record names it."""
        other = self._blocked.get(self.holder.token.encode())
        if other is None:
            return None
        try:
            lock_id, since, token, *_ = json.loads(other)
            if not isinstance(token, str):
                return None
            return BlockedOn(check_lock_id(lock_id), finite(since), token)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None

    # --- the queue --------------------------------------------------------------------------

    def _ranks_as_interactive(self, entry: _Entry) -> bool:
        return entry.priority is Priority.INTERACTIVE or entry.token in self._aged

    def position_of(self, token: str) -> int | None:
        """Return the number of waiters before `token`; None if it is not queued."""
        own = token.encode()
        return next((index for index, each in enumerate(self._queue) if each.token == own), None)

    def next_token(self) -> str:
        """Return the token of the first waiter; empty if there is none."""
        return self._queue[0].token.decode("latin-1") if self._queue else ""

    def _ahead_of(self, token: str) -> list[_Entry]:
        """Return the waiters before `token`: all, if it is not queued."""
        return self._queue[: self.position_of(token)]

    def tokens_ahead_of(self, token: str) -> frozenset[bytes]:
        """Return the tokens of the waiters before `token`."""
        return frozenset(entry.token for entry in self._ahead_of(token))

    def processes_ahead_of(self, token: str) -> int:
        """Return the number of processes of the waiters before `token`."""
        return len({process_of(each) for each in self.tokens_ahead_of(token)})

    def is_turn_of(self, token: str) -> bool:
        """Return whether the lock is free, and the waiters before `token` had time to claim it.

        For a token that is not queued, all waiters come first.
        """
        ahead = self._ahead_of(token) if self.free else None
        if not ahead:
            return ahead is not None
        return self.lapsed and all(entry.token in self._reserved_for for entry in ahead)

    def can_be_reserved_by(self, token: str) -> bool:
        """Return whether the lock is free, others are queued, and no reservation runs for them."""
        reserved = self._reserved_for and not self.lapsed
        return self.free and not reserved and self._processes_besides(token) > 0

    def _processes_besides(self, token: str) -> int:
        """Return the number of waiting processes, `token` not counted."""
        own = token.encode()
        return len({process_of(entry.token) for entry in self._queue if entry.token != own})

    @property
    def empty(self) -> bool:
        """Return whether nobody waits."""
        return not self._queue

    @property
    def full(self) -> bool:
        """Return whether it has no room for another waiter."""
        return len(self._queue) >= MOST_WAITERS

    def interactive_waits(self) -> bool:
        """Return whether an interactive request waits, or batch work that ranks as one."""
        return bool(self._queue) and self._ranks_as_interactive(self._queue[0])

    def waiters(self) -> list[Waiter]:
        """Return the waiters, in the order of service."""
        return [
            Waiter(
                printable(entry.token.decode("latin-1")),
                entry.priority.value,
                entry.since,
                *_details(entry),
                entry.token in self._aged,
            )
            for entry in self._queue
        ]

    # --- the next record --------------------------------------------------------------------

    def succeeded_by(self, claim_record: bytes, token: str, *, passing: bool = False) -> bytes:
        """Return the record in which the claim holds the lock, and the others wait on.

        Args:
            claim_record: the claim's own first entry.
            token: its token.
            passing: drop the waiters ahead of it, which have not taken their turn: they are
                dead, or were paused for so long that they have to queue again.
        """
        own = token.encode()
        queue = self._queue[len(self._ahead_of(token)) :] if passing else self._queue
        begin = claim_record + b"\n< " + self._origin()
        return self._record(begin, (entry for entry in queue if entry.token != own))

    def _origin(self) -> bytes:
        """Return the last holder's token, and how its lease ended."""
        if self._reserved_for:  # the record's first entry is of a caller that never had the lock
            return self._predecessor
        predecessor = self.holder.token.encode()
        note = self._done.get(predecessor)
        how = b"lapsed" if note is None else b"broken " + note if note else b"released"
        return b"%b %b" % (predecessor, how)

    def reserved_by(
        self, claim_record: bytes, token: str, *, besides: str, leaving: bool
    ) -> tuple[bytes, float]:
        """Return a record that reserves the free lock for its queue, and its time to live.

        Args:
            claim_record: the first entry of the caller that makes the reservation.
            token: its token; one that is nowhere in the queue.
            besides: the caller's token in the queue, if it is queued.
            leaving: whether the caller leaves the queue.
        """
        left = besides.encode() if leaving else b""
        begin = claim_record + b"\n< " + self._origin()
        record = self._record(begin, (entry for entry in self._queue if entry.token != left))
        # One more, for the last of them to notice that it is its turn.
        seconds = PATIENCE_SECONDS * (self._processes_besides(besides) + 1)
        return record + done(token) + b"\n? " + token.encode(), seconds

    def compacted(self) -> bytes:
        """Return the record without the waiters that are done."""
        own = self.holder.token.encode()
        begin = self._holder_line
        if self._predecessor:
            begin += b"\n< " + self._predecessor
        if own in self._blocked:
            begin += b"\n! " + own + b" " + self._blocked[own]
        return self._record(begin, self._queue)

    @property
    def worth_compacting(self) -> bool:
        """Return whether the record is long, and at least half of it is of waiters that left."""
        length = len(self.stored.record)
        return length > _LONG_BYTES and not self.free and len(self.compacted()) <= length / 2

    def _record(self, begin: bytes, queue: Iterable[_Entry]) -> bytes:
        return b"".join([begin, *(self._copy_of(entry) for entry in queue)])

    def _copy_of(self, entry: _Entry) -> bytes:
        return entry.copy + b"\n^ " + entry.token if entry.token in self._aged else entry.copy


def _operator(note: bytes) -> str:
    """Return the operator's name from the entry that ended a broken lease."""
    if not note:
        return ""
    try:
        return printable(json.loads(note))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return "somebody"


def _details(entry: _Entry) -> tuple[str, str]:
    try:
        process, request, *_ = json.loads(entry.details)
        return printable(process), printable(request)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return "", ""
