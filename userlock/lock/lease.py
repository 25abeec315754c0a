"""The words of the lock: claims, leases, holders, and how asking for them can end.

Three outcomes are kept apart throughout: granted, held by somebody, and
unavailable (the store did not say). An error is never read as "held", nor as
"free".
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
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from userlock.lock.service import LockService

#: memcached reads a time to live above 30 days as a date; a lease of a month is no lease.
MAX_LEASE_SECONDS = 30 * 86400 - 3600
#: A caller that wants to wait longer than a day wants a queue, not a lock.
MAX_WAIT_SECONDS = 86400.0

#: One word: lines of a record name tokens among other words.
_TOKEN = re.compile(r"[!-~]{1,200}")


class Priority(enum.Enum):
    """The priority of a request: a waiting interactive request goes before any batch attempt."""

    INTERACTIVE = "interactive"
    BATCH = "batch"

    @classmethod
    def of(cls, value: Priority | str) -> Priority:
        """Return the priority named by a word; `ValueError` says which words there are."""
        try:
            return cls(value)
        except ValueError:
            raise ValueError(f"priority must be 'interactive' or 'batch', not {value!r}") from None


def check_lock_id(lock_id: object) -> str:
    """Return the lock id as a string, or an error that says what is wrong with it.

    Any non-empty `str` of any length and any Unicode is a lock id; an `int`
    is turned into one, because user ids often are ints.
    """
    if type(lock_id) is str and lock_id:
        return lock_id
    if isinstance(lock_id, bool) or not isinstance(lock_id, str | int):
        raise TypeError(
            f"a lock id must be a non-empty str (or an int), not {type(lock_id).__name__}: "
            f"{lock_id!r:.100}"
        )
    lock_id = str(lock_id)
    if not lock_id:
        raise ValueError("a lock id must not be empty: it names whose data is locked")
    return lock_id


def check_seconds(name: str, value: object, *, least: float, most: float) -> float:
    """`value` as a float from `least` to `most`, or an error that says what is wrong."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    seconds = float(value)
    if math.isnan(seconds) or not least <= seconds <= most:
        raise ValueError(
            f"{name} must be at least {least:g} and at most {most:,.0f} seconds, not {value!r}"
        )
    return seconds


def check_lock_timeout(value: object) -> float:
    """Return a usable lease length in seconds, or a clear error."""
    return check_seconds("lock_timeout", value, least=0.001, most=MAX_LEASE_SECONDS)


def check_wait_timeout(value: object) -> float:
    """Return a usable wait in seconds (0: try once), or a clear error."""
    return check_seconds("wait_timeout", value, least=0, most=MAX_WAIT_SECONDS)


class Holder(NamedTuple):
    """The holder (or claimant) of a lock, as a store's record names it.

    It comes from a server that others can write to, so it is for people to
    read; only `token` is ever compared.

    Attributes:
        token: the owner token of the lease; random, compared, never guessed at.
        priority: "interactive" or "batch".
        since: when the lease was asked for, in seconds since 1970 by the holder's clock.
        lock_timeout: the lease's length in seconds.
        process: host and process id of the holder.
        request: what it is doing (for a web request, its method and path).
    """

    token: str
    priority: str
    since: float
    lock_timeout: float
    process: str
    request: str

    def describe(self) -> str:
        """One phrase that names the holder, safe to log."""
        facts = f"{self.priority}, lease of {self.lock_timeout:g} s"
        if self.request:
            return f"{self.request} ({facts}, on {self.process})"
        return f"{self.process} ({facts})"

    def encode(self) -> bytes:
        """Return the record as stored: a JSON list."""
        return encode_holder(*self)

    @classmethod
    def decode(cls, record: bytes) -> Holder:
        """Return the holder that a record names; a foreign record gives a holder that owns nothing.

        Whatever stands in the record, this neither raises nor yields a token
        that could match one of ours, and its strings are safe to log.
        """
        try:
            # What a later release may have added behind is passed over.
            token, priority, since, lock_timeout, process, request, *_ = json.loads(record)
            if not _TOKEN.fullmatch(token):
                raise ValueError("no line of the record could name this token")
            return cls(
                token=token,
                priority=printable(priority),
                since=finite(since),
                lock_timeout=finite(lock_timeout),
                process=printable(process),
                request=printable(request),
            )
        except (ValueError, TypeError, OverflowError, RecursionError):
            return cls("", "unknown", 0.0, 0.0, "a record that userlock did not write", "")


def encode_holder(
    token: str, priority: str, since: float, lock_timeout: float, process: str, request: str
) -> bytes:
    """Return the text that `Holder.encode` returns, without making the holder first."""
    # Put together by hand, because json.dumps would take a tenth of what the
    # whole lock takes, and most of it for strings seen before.
    return (f'["{token}","{priority}",{since:.3f},{_tail(lock_timeout, process, request)}').encode()


@functools.lru_cache(maxsize=1024)
def _tail(lock_timeout: float, process: str, request: str) -> str:
    """Return the part that all locks of one kind of request share."""
    return f"{lock_timeout!r},{json.dumps(process)},{json.dumps(request[:200])}]"


def printable(text: object) -> str:
    """Return a string that is safe to log, of at most 200 characters; `TypeError` if it is none."""
    if not isinstance(text, str):
        raise TypeError("not a string")
    return text[:200] if text[:200].isprintable() else _replaced(text[:200])


def finite(number: str | bytes | float) -> float:
    """Return a number out of a record; `ValueError` for what is no time: infinite, or no number."""
    found = float(number)
    if not math.isfinite(found):
        raise ValueError("not a finite number")
    return found


def _replaced(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


class Claim(NamedTuple):
    """A request for a lease, the same through all of its attempts.

    Attributes:
        lock_id: what to lock.
        holder: who asks; `holder.token` is the owner token.
        record: the holder as stored.
        ttl_seconds: how long the lease shall last.
        priority: who passes whom.
    """

    lock_id: str
    holder: Holder
    record: bytes
    ttl_seconds: float
    priority: Priority

    @property
    def token(self) -> str:
        return self.holder.token

    def afresh(self) -> Claim:
        """Return the same with another token."""
        holder = self.holder._replace(token=new_token())
        return self._replace(holder=holder, record=holder.encode())


def claim_of(lock_id: str, record: bytes, ttl_seconds: float) -> Claim:
    """Return the claim that a record of ours was made for."""
    holder = Holder.decode(record)
    return Claim(lock_id, holder, record, ttl_seconds, Priority(holder.priority))


class Lease(NamedTuple):
    """A granted lock. A frozen value: extending gives a new one.

    Attributes:
        lock_id: what is locked.
        token: the owner token.
        deadline: on the holder's clock (`Clock.now`); from then on the lease is over. Counted
            from before the store was asked, so it is never later than the store's own end.
        ttl_seconds: its length as asked for.
        degraded: taken optimistically because the store did not answer.
        unsettled: a command that asked for it may still be on its way to the store, and be
            carried out after the lease has been given back.
        record: what the store had under the lock when the lease was granted.
        version: the store's name for that state, good for one change at one round trip; None
            when it is not known.
        contended: others were waiting when it was granted, or it was waited for.
        priority: of who asked for it, "interactive" or "batch".
        also: a lease of the fallback service that goes with this one, and that service.
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
    also: tuple[Lease, LockService] | None = None


class Granted(NamedTuple):
    """The lease is ours."""

    lease: Lease


class Held(NamedTuple):
    """Somebody else has it."""

    holder: Holder


class Unavailable(NamedTuple):
    """The store did not say.

    Attributes:
        reason: why, for people.
        sent: whether the store was asked at all, so that it may yet carry the request out.
    """

    reason: str
    sent: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Released:
    """The lease was ours to the end and is gone now."""


RELEASED = Released()


class Lost(NamedTuple):
    """The lease was not ours any more.

    Attributes:
        how: what became of it: "ran out", "forgotten" (evicted, flushed or restarted), "taken"
            or "broken".
        holder: who has the lock now, or None.
        by: who broke it.
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
            how = "the store forgot it (evicted, flushed or restarted)"
    return how if lost.holder is None else f"{how}; it is now held by {lost.holder.describe()}"


_HOST = socket.gethostname()
#: 96 bits, in hexadecimal.
_NONCE_LENGTH = 24


def process_label() -> str:
    """This process, for people: host name and process id."""
    return _process_label


def _label_process() -> None:
    global _process_label, _nonce
    _process_label = f"{_HOST}/{os.getpid()}"
    _nonce = os.urandom(_NONCE_LENGTH // 2).hex()


_process_label = ""
_nonce = ""
_count = itertools.count(1)
_label_process()
os.register_at_fork(after_in_child=_label_process)


def new_token() -> str:
    """Return a token that no other claim has: 96 random bits for the process, and a count.

    It need not be secret: it is stored where whoever could misuse it could
    delete the record as well.
    """
    return f"{_nonce}{next(_count):x}"


def process_of(token: bytes) -> bytes:
    """Return the random bits of a token that identify its process.

    Containers may well share a host name and a process id.
    """
    return token[:_NONCE_LENGTH]
