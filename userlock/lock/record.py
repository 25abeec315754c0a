"""A lock's record: its holder and its queue. No I/O.

A record is a log. Its first entry names the holder. Events during the hold are
appended, one entry per line:

    ["4f01","interactive",1763640000.1234,60.0,"web-1/77","POST /answers"]
    +i 4f02 1763640000.150 ["web-2/12","GET /badges"]   4f02 waits, interactive
    +b 4f03 1763640000.170 ["jobs-1/9","nightly"]       4f03 waits, batch
    ^ 4f03                                              4f03 has aged: ranks as interactive, and
                                                        so does batch that is queued before it
    = 4f02                                              4f02 is done: it has timed out
    ! 4f01 ["another lock",1763640000.2,"4f05"]         the holder waits for another lock, as 4f05
    = 4f01                                              the holder is done: the lock is free
    ? 4f01                                              the free lock is reserved for its queue
    #                                                   a change without a meaning, for a fence

The next holder replaces the whole record. Its record names it as the holder, names its predecessor
and how that lease ended (`< 4f01 released`, `lapsed`, or `broken` and by whom), and keeps the rest
of the queue. A waiter that queues again after its record was lost (`~` for `+`) goes before those
that began to wait after it. A reservation (`?`) lives for as long as the waiters above it may need
to claim the lock; once it has lapsed, other callers may pass them.

Others can write to the server, later releases among them, so nothing here
raises, whatever the record contains. Entries that make no sense are ignored,
and so are fields behind the known ones, lines too long to be ours, and waiters
above 200. A record that is too long as a whole counts as another program's.
"""

from __future__ import annotations

import bisect
import functools
import json
import re
from collections.abc import Container, Iterable
from typing import NamedTuple

from userlock.lock.lease import Holder, Priority, check_lock_id, finite, printable, process_of
from userlock.lock.store import MAX_RECORD_BYTES, Stored

#: How long a free lock waits for the first waiter, for each process that is queued ahead.
PATIENCE_SECONDS = 0.25
#: The longest line of ours: a lock id of 1,500 characters takes 12 bytes each, as JSON.
_MOST_LINE_BYTES = 20_000
#: The waiters that are read. Later ones poll without a position: a record of thousands of forged
#: lines must not take the time of other locks.
MOST_WAITERS = 200

#: The entry that makes a new version of a record, and changes nothing else.
CHANGE = b"\n#"

_REST = rb"(.{0,%d})" % _MOST_LINE_BYTES
#: A waiter's line: its mark, and what is copied to the next record: priority, token, begin of the
#: wait, details.
_WAITER = rb"([+~])(([ib]) ([^ \n]+) (-?\d{1,12}(?:\.\d{1,9})?) " + _REST + b")"
#: Any line behind the first: a waiter's, or a mark, a token and a note.
_LINE = re.compile(_WAITER + rb"|([=^!?<]) ([^ \n]*) ?" + _REST).fullmatch
_Line = tuple[bytes, ...]
_MARK, _COPY, _PRIORITY, _TOKEN, _SINCE, _DETAILS = range(6)


def _parsed(line: bytes) -> _Line:
    found = _LINE(line)
    return () if found is None else found.groups(b"")


#: From one reading to the next, most lines of a long record stay, so those of a record of many are
#: kept; longer ones are not, because others may write a megabyte.
_kept = functools.lru_cache(5000)(_parsed)
_MANY_ENTRIES = 20
_MOST_KEPT_BYTES = 1000


class Waiter(NamedTuple):
    """One waiter of a lock, as the record names it, for display.

    Attributes:
        token: names the attempt; random.
        priority: "interactive" or "batch".
        since: start of the wait, in seconds since 1970 by the waiter's clock.
        process: host and process id.
        request: its task; for a web request, method and path.
        aged: batch that has waited so long that it ranks as interactive.
    """

    token: str
    priority: str
    since: float
    process: str
    request: str
    aged: bool


class BlockedOn(NamedTuple):
    """The lock that the holder itself waits for, since when, and its token in that queue."""

    lock_id: str
    since: float
    token: str


def _in_order(lines: Iterable[_Line]) -> list[bytes]:
    """Return the tokens of waiters, with those that queued again where they began to wait."""
    found: list[bytes] = []
    #: For each waiter the latest begin of a wait up to there: ascending, so it can be searched.
    latest: list[float] = []
    for line in lines:
        index, began = len(found), float(line[_SINCE])
        since = max(began, latest[-1]) if latest else began
        if line[_MARK] == b"~":  # before the first that began to wait later, by the waiters' clocks
            index, since = bisect.bisect_right(latest, began), began
        found.insert(index, line[_TOKEN])
        latest.insert(index, since)
    return found


def joining(holder: Holder, *, again: bool = False) -> bytes:
    """Return the entry that puts a claim in the queue; `again` after its record was lost."""
    mark = "~" if again else "+"
    letter = "i" if holder.priority == Priority.INTERACTIVE.value else "b"
    details = _details_as_json(holder.process, holder.request[:100])
    return f"\n{mark}{letter} {holder.token} {holder.since:.3f} {details}".encode()


@functools.lru_cache(1024)
def _details_as_json(process: str, request: str) -> str:
    return json.dumps([process, request])


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

    Attributes:
        stored: the record as it was read.
        holder: the holder that the record names.
        released: whether the holder has released the lock.
        lapsed: whether the lease's time is over.
        free: whether the lock is free for the first waiter to claim.
    """

    #: Of most records none: the waiters that have aged, the last holder and how it ended, the wait
    #: of the holder itself, the waiters that a reservation is for.
    _aged: dict[bytes, None] | None = None
    _predecessor = _blocked = b""
    _reserved_for: frozenset[bytes] = frozenset()

    def __init__(self, stored: Stored, before: Record | None = None) -> None:
        """Parse it; `before`: another record of the lock, perhaps with the same holder."""
        self.stored = stored
        text = stored.record
        if len(text) > MAX_RECORD_BYTES:
            text = b""  # no store gave it room: another program's, so nobody can take the lock
        self._holder_line, _, log = text.partition(b"\n")
        if len(self._holder_line) > _MOST_LINE_BYTES:
            self._holder_line = log = b""
        self.holder: Holder
        if before is not None and before._holder_line == self._holder_line:
            self.holder = before.holder
        else:
            self.holder = Holder.decode(self._holder_line)
        self._done: dict[bytes, bytes] = {}
        #: The lines of the waiters, by token.
        self._lines: dict[bytes, _Line] = {}
        entries = log.split(b"\n")
        many = len(entries) > _MANY_ENTRIES
        for each in entries:
            line = (_kept if many and len(each) <= _MOST_KEPT_BYTES else _parsed)(each)
            if not line:
                continue
            token = line[_TOKEN]
            if not token:
                self._note(line[-3], line[-2], line[-1])
            # It may have been sent twice, after a lost reply.
            elif len(self._lines) < MOST_WAITERS and token not in self._done:
                self._lines.setdefault(token, line)
        again = b"\n~" in text
        #: The waiters, in the order of service.
        self._queue = _in_order(self._lines.values()) if again else list(self._lines)
        if b"\n+b " in text or b"\n~b " in text:
            if self._aged:
                self._age_those_before()
            self._queue.sort(key=self._ranks_as_batch)
        self.released = self.holder.token.encode() in self._done
        self.lapsed = stored.lapsed
        self.free = self.lapsed or self.released

    def again(self, stored: Stored) -> Record:
        """Return the record as it was read once more; it is parsed if it has changed."""
        if stored.record != self.stored.record:
            return Record(stored, self)
        same = Record.__new__(Record)
        lapsed = stored.lapsed
        vars(same).update(vars(self), stored=stored, lapsed=lapsed, free=lapsed or self.released)
        return same

    def _note(self, mark: bytes, token: bytes, note: bytes) -> None:
        if mark == b"=":
            self._done.setdefault(token, note)
            self._lines.pop(token, None)
        elif mark == b"^":
            self._aged = self._aged or {}
            self._aged[token] = None
        elif mark == b"<":
            self._predecessor = b"%b %b" % (token, note)
        elif token != self.holder.token.encode():
            pass
        elif mark == b"!":
            self._blocked = note
        elif mark == b"?":
            self._reserved_for = frozenset(self._lines)

    # --- the holder -------------------------------------------------------------------------

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
        try:
            lock_id, since, token, *_ = json.loads(self._blocked)
            if not isinstance(token, str):
                return None
            return BlockedOn(check_lock_id(lock_id), finite(since), token)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None

    # --- the queue --------------------------------------------------------------------------

    def _age_those_before(self) -> None:
        """Let batch that is queued before an aged waiter rank with it: it may not have noted yet
        that it has aged as well."""
        assert self._aged is not None
        behind = False
        for token in reversed(self._queue):
            if token in self._aged:
                behind = True
            elif behind and self._lines[token][_PRIORITY] == b"b":
                self._aged[token] = None

    def _ranks_as_batch(self, token: bytes) -> bool:
        return self._lines[token][_PRIORITY] == b"b" and token not in (self._aged or ())

    def position_of(self, token: str) -> int | None:
        """Return the number of waiters before `token`; None if it is not queued."""
        own = token.encode()
        return self._queue.index(own) if own in self._lines else None

    def names(self, token: str) -> bool:
        """Return whether a token is the holder's, be the lock released or not, or a waiter's."""
        return token == self.holder.token or token.encode() in self._lines

    def next_token(self) -> str:
        """Return the token of the first waiter; empty if there is none."""
        return self._queue[0].decode("latin-1") if self._queue else ""

    def first_of(self, tokens: Container[str]) -> str:
        """Return the first waiter that is one of these; empty if there is none."""
        queue = (each.decode("latin-1") for each in self._queue)
        return next((each for each in queue if each in tokens), "")

    def tokens_ahead_of(self, token: str) -> list[bytes]:
        """Return the waiters before `token`: all, if it is not queued."""
        return self._queue[: self.position_of(token)]

    def processes_ahead_of(self, token: str) -> int:
        """Return the number of processes of the waiters before `token`."""
        return len({process_of(each) for each in self.tokens_ahead_of(token)})

    def is_turn_of(self, token: str) -> bool:
        """Return whether the lock is free, and the waiters before `token` had time to claim it."""
        ahead = self.tokens_ahead_of(token) if self.free else None
        if not ahead:
            return ahead is not None
        return self.lapsed and self._reserved_for.issuperset(ahead)

    def can_be_reserved_by(self, token: str) -> bool:
        """Return whether the lock is free, others are queued, and no reservation runs for them."""
        reserved = self._reserved_for and not self.lapsed
        return self.free and not reserved and self._processes_besides(token) > 0

    def _processes_besides(self, token: str) -> int:
        """Return the number of waiting processes, `token` not counted."""
        own = token.encode()
        return len({process_of(each) for each in self._queue if each != own})

    @functools.cached_property
    def processes(self) -> int:
        """Return the number of processes that wait; at least one."""
        return len({process_of(each) for each in self._queue}) or 1

    @property
    def empty(self) -> bool:
        """Return whether nobody waits."""
        return not self._queue

    @property
    def room(self) -> int:
        """Return the number of waiters that it has room for."""
        return MOST_WAITERS - len(self._queue)

    def interactive_waits(self) -> bool:
        """Return whether an interactive request waits, or batch work that ranks as one."""
        return bool(self._queue) and not self._ranks_as_batch(self._queue[0])

    def waiters(self) -> list[Waiter]:
        """Return the waiters, in the order of service."""
        return [self._waiter(token) for token in self._queue]

    def next_besides(self, token: str) -> Waiter | None:
        """Return the first waiter that is not `token`; None if there is none."""
        own = token.encode()
        return next((self._waiter(each) for each in self._queue if each != own), None)

    def _waiter(self, token: bytes) -> Waiter:
        line = self._lines[token]
        priority = Priority.BATCH if line[_PRIORITY] == b"b" else Priority.INTERACTIVE
        return Waiter(
            printable(token.decode("latin-1")),
            priority.value,
            float(line[_SINCE]),
            *_details(line[_DETAILS]),
            token in (self._aged or ()),
        )

    # --- the next record --------------------------------------------------------------------

    def succeeded_by(self, claim_record: bytes, token: str, *, passing: bool = False) -> bytes:
        """Return the record in which the claim of `token` holds the lock, and the others wait on.

        `passing` drops the waiters ahead of it: they are dead, or have to queue again.
        """
        own = token.encode()
        queue = self._queue[len(self.tokens_ahead_of(token)) :] if passing else self._queue
        begin = claim_record + b"\n< " + self._origin()
        return self._record(begin, [each for each in queue if each != own])

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
            besides: the caller's token in the queue, which it is `leaving`, or not.
            leaving: see there.
        """
        left = besides.encode() if leaving else b""
        begin = claim_record + b"\n< " + self._origin()
        record = self._record(begin, [each for each in self._queue if each != left])
        # One more, for the last of them to notice that it is its turn.
        seconds = PATIENCE_SECONDS * (self._processes_besides(besides) + 1)
        return record + done(token) + b"\n? " + token.encode(), seconds

    def compacted(self) -> bytes:
        """Return the record without the waiters that are done."""
        own = self.holder.token.encode()
        begin = self._holder_line
        if self._predecessor:
            begin += b"\n< " + self._predecessor
        if self._blocked:
            begin += b"\n! " + own + b" " + self._blocked
        return self._record(begin, self._queue)

    def _record(self, begin: bytes, tokens: Iterable[bytes]) -> bytes:
        lines, aged = self._lines, self._aged or ()
        copies = [
            b"%b\n^ %b" % (lines[token][_COPY], token) if token in aged else lines[token][_COPY]
            for token in tokens
        ]
        return b"\n+".join([begin, *copies])


def _operator(note: bytes) -> str:
    """Return the operator's name from the entry that ended a broken lease."""
    if not note:
        return ""
    try:
        return printable(json.loads(note))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return "somebody"


def _details(text: bytes) -> tuple[str, str]:
    try:
        process, request, *_ = json.loads(text)
        return printable(process), printable(request)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return "", ""
