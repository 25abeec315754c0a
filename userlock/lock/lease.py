"""Values of the lock: priorities, holders, claims, leases, and outcomes.

Three outcomes are kept apart throughout: granted, held by somebody, and unavailable (the store did
not answer). An error never counts as "held", nor as "free".
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import json
import math
import os
import re
import socket
from typing import Literal, NamedTuple

from userlock.arguments import check_count, check_seconds
from userlock.fork import reset_in_child
from userlock.ids import MAX_CHARACTERS, quoted, show_request

#: memcached reads a time to live above 30 days as a date; a lease of a month is no lease.
MAX_LEASE_SECONDS = 30 * 86400 - 3600
#: A caller that wants to wait longer than a day wants a queue, not a lock.
MAX_WAIT_SECONDS = 86400.0

#: The longest text of a record that is kept and shown, in characters.
MOST_SHOWN = 200
#: One word: lines of a record name tokens among other words.
_TOKEN = re.compile(r"[!-~]{1,200}")
#: The words for a `Priority`, accepted in its place.
PriorityName = Literal["interactive", "batch"]


class Priority(enum.Enum):
    """The priority of a request. A waiting interactive request goes before any batch attempt."""

    INTERACTIVE = "interactive"
    BATCH = "batch"

    @classmethod
    def of(cls, value: Priority | str) -> Priority:
        """Return the priority named by a word; `ValueError` says which words there are."""
        if isinstance(value, cls):
            return value
        try:
            return cls(value)
        except ValueError:
            raise ValueError(f"priority must be 'interactive' or 'batch', not {value!r}") from None


def check_lock_id(lock_id: object) -> str:
    """Return the lock id as a string; raise a clear error if it is none.

    It is a `str` of 1 to 1,500 characters, or an `int`, because user ids often are ints.
    """
    if type(lock_id) is str and 0 < len(lock_id) <= MAX_CHARACTERS:
        return lock_id
    if isinstance(lock_id, bool) or not isinstance(lock_id, str | int):
        raise TypeError(
            f"a lock id must be a non-empty str (or an int), not {type(lock_id).__name__}"
        )
    # The text itself, also of a member of an enumeration, whose `str` is its name.
    lock_id = str.__str__(lock_id) if isinstance(lock_id, str) else int.__repr__(lock_id)
    if not lock_id:
        raise ValueError("a lock id must not be empty: it names whose data is locked")
    if len(lock_id) > MAX_CHARACTERS:
        raise ValueError(
            f"a lock id must have at most {MAX_CHARACTERS:,} characters, and this one has "
            f"{len(lock_id):,}. To fix it: lock by the user's id, or by a hash of the text"
        )
    return lock_id


def check_lock_timeout(value: object, name: str = "lock_timeout") -> float:
    """Return a usable lease length in seconds, or a clear error."""
    return check_seconds(name, value, most=MAX_LEASE_SECONDS)


def check_wait_timeout(value: object) -> float:
    """Return a usable wait in seconds (0: try once), or a clear error."""
    return check_seconds("wait_timeout", value, least=0, most=MAX_WAIT_SECONDS)


def check_max_waiting(value: object) -> int:
    """Return a usable number of waiters (0: nobody waits), or a clear error."""
    return check_count("max_waiting", value, least=0)


class Holder(NamedTuple):
    """The holder of a lock, as a store's record names it: for display, but for the token.

    Attributes:
        token: the owner token of the lease; random.
        priority: "interactive" or "batch".
        since: the time of the request for the lease, in seconds since 1970 by the holder's clock.
        lock_timeout: the lease's length in seconds.
        process: host and process id of the holder.
        request: its task; for a web request, method and path.
    """

    token: str
    priority: str
    since: float
    lock_timeout: float
    process: str
    request: str

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def describe(self) -> str:
        """Return one phrase, safe to log. Hides the path with ids (`show_ids`)."""
        facts = f"{self.priority}, lease of {self.lock_timeout:g} s"
        if self.request:
            return f"{show_request(self.request)} ({facts}, on {self.process})"
        return f"{self.process} ({facts})"

    @classmethod
    def decode(cls, record: bytes) -> Holder:
        """Return the holder that a record names; all its strings are safe to log. Never raises.

        A record of another program gives an empty token, which matches none of ours.
        """
        try:
            # Fields that a later release may have appended are ignored.
            token, priority, since, lock_timeout, process, request, *_ = json.loads(record.decode())
            if not _TOKEN.fullmatch(token):
                raise ValueError("no entry of the record could name this token")
            times = finite(since), finite(lock_timeout)
            return cls(token, printable(priority), *times, printable(process), printable(request))
        except (ValueError, TypeError, OverflowError, RecursionError):
            return cls("", "unknown", 0.0, 0.0, "a record that userlock did not write", "")


# json.dumps would take a tenth of the time of an uncontended lock.
@functools.lru_cache(maxsize=1024)
def _tail(lock_timeout: float, process: str, request: str) -> str:
    """Return the fields that all locks of one kind of request share, as JSON."""
    return f"{lock_timeout!r},{json.dumps(process)},{json.dumps(request)}]"


def printable(text: object) -> str:
    """Return a string that is safe to log, of at most 200 characters; `TypeError` if it is none."""
    if not isinstance(text, str):
        raise TypeError("not a string")
    text = text[:MOST_SHOWN]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text)


def finite(number: str | bytes | float) -> float:
    """Return a number out of a record; `ValueError` if it is infinite or no number."""
    found = float(number)
    if not math.isfinite(found):
        raise ValueError("not a finite number")
    return found


@dataclasses.dataclass(slots=True)
class Claim:
    """A request for a lease, with the fields of its `Holder`."""

    lock_id: str
    token: str
    priority: Priority
    since: float
    ttl_seconds: float
    process: str
    request: str

    @property
    def holder(self) -> Holder:
        """Return the claimant as it is shown."""
        facts = self.token, self.priority.value, self.since, self.ttl_seconds
        return Holder(*facts, self.process, self.request)

    @property
    def record(self) -> bytes:
        """Return the claimant as stored: a JSON list."""
        return self.record_since(self.since)

    def record_since(self, since: float) -> bytes:
        """Return the claimant as stored, from another time on."""
        head = f'["{self.token}","{self.priority._value_}",{since:.4f},'
        return (head + _tail(self.ttl_seconds, self.process, self.request[:MOST_SHOWN])).encode()

    @classmethod
    def of_lease(cls, lease: Lease) -> Claim:
        """Return the claim of a degraded lease."""
        token, priority, since, _, process, request = Holder.decode(lease.record)
        ttl = lease.ttl_seconds
        return cls(lease.lock_id, token, Priority.of(priority), since, ttl, process, request)

    def lease(
        self,
        asked_at: float,
        record: bytes,
        version: object,
        *,
        contended: bool = False,
        unsettled: bool = False,
    ) -> Lease:
        """Return the lease that was asked for at that time: it ends before the store's own."""
        ttl, state = self.ttl_seconds, (False, unsettled, record, version, contended)
        return Lease(self.lock_id, self.token, asked_at + ttl, ttl, *state, self.priority._value_)

    def afresh(self) -> Claim:
        """Return the same claim with another token."""
        return dataclasses.replace(self, token=new_token())


class Lease(NamedTuple):
    """A granted lock. A frozen value: extending gives a new one.

    Attributes:
        lock_id: the lock.
        token: the owner token.
        deadline: end of the lease on the holder's clock (`Clock.now`), counted from before the
            request, so it is never later than the store's own end.
        ttl_seconds: its length as requested.
        degraded: taken because the store did not answer.
        unsettled: a request for it may still reach the store after it was given back.
        record: the record in the store when the lease was granted.
        version: the store's name for that state; None if it is not known.
        contended: others were waiting when it was granted, or it was waited for.
        priority: "interactive" or "batch".
        fallback: the lease in the fallback store that goes with this degraded one.
    """

    lock_id: str
    token: str
    deadline: float
    ttl_seconds: float
    degraded: bool = False
    unsettled: bool = False
    record: bytes = b""
    version: object = None
    contended: bool = False
    priority: str = "interactive"
    fallback: Lease | None = None

    def __repr__(self) -> str:
        state = "a degraded lease" if self.degraded else "a lease"
        return f"<{state} of {quoted(self.lock_id)} for {self.ttl_seconds:g} s>"


class Granted(NamedTuple):
    """The lease is ours."""

    lease: Lease


class Fenced(NamedTuple):
    """The lease is ours, as it stands in the record now, and has this number."""

    lease: Lease
    number: int


class Held(NamedTuple):
    """Somebody else has it."""

    holder: Holder


class Unavailable(NamedTuple):
    """The store did not answer.

    Attributes:
        reason: the failure, in words.
        sent: whether the request may have reached the store, and may still be carried out.
    """

    reason: str
    sent: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Released:
    """The lease was ours to the end and is gone now."""

    #: Whether others wait for the lock, so that its record is still there.
    to_queue: bool = dataclasses.field(default=False, compare=False)


RELEASED = Released()
RELEASED_TO_QUEUE = Released(to_queue=True)


class Lost(NamedTuple):
    """The lease was not ours any more.

    Attributes:
        how: "ran out", "forgotten" (evicted, flushed or restarted), "taken" or "broken".
        holder: the present holder of the lock, or None.
        by: the operator who broke it.
    """

    how: str
    holder: Holder | None = None
    by: str = ""


def describe_loss(lost: Lost, lease: Lease) -> str:
    """Describe the end of a lease."""
    match lost.how:
        case "ran out":
            how = f"its lease of {lease.ttl_seconds:g} s ran out"
        case "broken":
            how = f"it was broken by {lost.by}"
        case _:  # "forgotten" or "taken": either way it was gone before its time
            how = "its record is gone from the store (evicted, flushed, restarted or broken)"
    return how if lost.holder is None else f"{how}; it is now held by {lost.holder.describe()}"


_HOST = socket.gethostname()
#: The part of a token that identifies its process: 96 bits, in hexadecimal.
NONCE_LENGTH = 24


def process_label() -> str:
    """Return the name of this process for display: host name and process id."""
    return _process_label


def _label_process() -> None:
    global _process_label, _nonce
    _process_label = f"{_HOST}/{os.getpid()}"
    _nonce = os.urandom(NONCE_LENGTH // 2).hex()


_process_label = ""
_nonce = ""
_count = itertools.count(1)
_label_process()
reset_in_child(_label_process)


def new_token() -> str:
    """Return a token that no other claim has: 96 random bits for the process, and a count."""
    return f"{_nonce}{next(_count):x}"


def new_claim(
    lock_id: str, priority: Priority, since: float, ttl_seconds: float, request: str
) -> Claim:
    """Return a claim of this process, with a token that no other one has."""
    token = f"{_nonce}{next(_count):x}"
    return Claim(lock_id, token, priority, since, ttl_seconds, _process_label, request)


def process_of(token: bytes) -> bytes:
    """Return the random bits of a token that identify its process (containers may share labels)."""
    return token[:NONCE_LENGTH]
