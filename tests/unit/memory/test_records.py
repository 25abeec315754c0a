"""A forged record costs a bounded time, however it is made."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable

import pytest

from tests.leases import as_stored, existing
from userlock.errors import LockTimeout
from userlock.ids import MAX_CHARACTERS
from userlock.lock.lease import Holder, Lease
from userlock.lock.record import MOST_WAITERS, BlockedOn, Record, blocked, done, joining
from userlock.lock.service import LockService
from userlock.lock.store import MAX_RECORD_BYTES, Stored, StoreUnavailable
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

HEAD = b'["4f01","interactive",1,60,"web","GET /"]'


def filled(line: Callable[[int], bytes], head: bytes = HEAD) -> bytes:
    lines, length = [head], len(head)
    for number in itertools.count():
        length += len(line(number)) + 1
        if length > MAX_RECORD_BYTES:
            break
        lines.append(line(number))
    return b"\n".join(lines)


FORGED = {
    "waiters": filled(lambda n: b"+i %x 1 x" % n),
    "waiters again, ascending": filled(lambda n: b"~i %x %d x" % (n, n)),
    "waiters again, descending": filled(lambda n: b"~i %x %d x" % (n, 10**9 - n)),
    "reservations": filled(lambda n: b"+i %x 1 x" % n if n % 2 else b"? 4f01"),
    "ends": filled(lambda n: b"= %x" % n),
    "aged": filled(lambda n: b"^ %x" % n),
    "blocked": filled(lambda n: b"! %x 1" % n),
    "newlines": filled(lambda n: b""),
    "deep waiters": filled(lambda n: b"+i %x 1 " % n + b"[" * 10_000),
    "deep block": HEAD + b"\n! 4f01 " + b"[" * 19_000,
    "deep holder": b"[" * MAX_RECORD_BYTES,
    "too long": HEAD + b"\n" + b"x" * (20 * MAX_RECORD_BYTES),
}


@pytest.mark.parametrize("name", FORGED)
def test_it_is_read_in_a_bounded_time(name: str) -> None:
    """Processor time, so a busy machine does no harm. Quadratic work would take minutes."""
    began = time.process_time()
    record = Record(Stored(FORGED[name], None, lapsed=True))
    for token in ("4f01", "none"):
        record.position_of(token)
        record.is_turn_of(token)
        record.can_be_reserved_by(token)
        record.succeeded_by(HEAD, token, passing=True)
    record.waiters()
    assert record.blocked_on is None
    assert time.process_time() - began < 20


@pytest.mark.parametrize("text", ["🔒", "\ud800", "\x1b"])
def test_the_longest_lines_of_ours_are_read(text: str) -> None:
    lock_id = text * MAX_CHARACTERS
    holder = Holder("4f01", "interactive", 1.0, 60.0, "p" * 255, text * 500)
    waiter = holder._replace(token="4f02")
    lines = as_stored(holder) + joining(waiter) + blocked("4f01", BlockedOn(lock_id, 2.0, "4f03"))
    record = Record(Stored(lines, None, lapsed=False))
    assert record.blocked_on == BlockedOn(lock_id, 2.0, "4f03")
    assert record.holder.token == "4f01"
    assert [each.token for each in record.waiters()] == ["4f02"]


@pytest.mark.parametrize("lock_id", ["", "x" * (MAX_CHARACTERS + 1), 7.5, None, ["x"]])
def test_a_lock_that_cannot_be_is_not_waited_for(lock_id: object) -> None:
    line = blocked("4f01", BlockedOn(lock_id, 2.0, "4f03"))  # type: ignore[arg-type]
    assert Record(Stored(HEAD + line, None, lapsed=False)).blocked_on is None


@pytest.mark.parametrize("name", ["too long", "deep holder"])
def test_nobody_takes_a_lock_over_a_record_that_is_too_long(name: str) -> None:
    """Nobody knows what it says: it excludes, until it is gone or an operator removes it."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    service = LockService(store, clock=clock)
    store.create("ann", FORGED[name], 60.0)
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=1)
    assert service.break_lock("ann") is not None
    assert isinstance(service.acquire("ann", wait_timeout=0), Lease)


def crowd(size: int, mark: str) -> bytes:
    return "".join(f"\n{mark} {n:x} {9e9 - n} []" for n in range(size)).encode()


@pytest.mark.parametrize("mark", ["+i", "~i", "+b"])
def test_a_record_has_room_for_so_many_waiters(mark: str) -> None:
    """Each poll parses it: a longer queue would take the time of all locks of the process."""
    record = Record(Stored(HEAD + crowd(40_000, mark) + done("4f01"), None, lapsed=False))
    assert len(record.waiters()) == MOST_WAITERS
    assert not record.room
    assert record.released, "the holder's own entry counts wherever it is"
    few = Record(Stored(HEAD + crowd(MOST_WAITERS - 1, mark), None, lapsed=False))
    assert (few.room, len(few.waiters())) == (1, MOST_WAITERS - 1)


def test_a_waiter_adds_nothing_to_a_full_record() -> None:
    """It polls without a position, once it has seen that there is no room."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    service = LockService(store, clock=clock)
    lease = service.acquire("ann", lock_timeout=3600)
    store.append("ann", crowd(MOST_WAITERS, "+i"))
    before = store.read("ann")
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=60)
    after = store.read("ann")
    assert before is not None
    assert after is not None
    own = after.record[len(before.record) :].splitlines()
    assert len(own) <= 3, "it has joined once, and left"
    service.release(lease)


def test_waiters_do_not_make_a_record_too_long() -> None:
    """Those without room in the queue wait without a position."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    service = LockService(store, clock=clock)
    lease = service.acquire("ann", lock_timeout=3600)
    full = lease.record + b"\n" + b"z" * (MAX_RECORD_BYTES - len(lease.record) - 10)
    store.swap("ann", existing(store.read("ann")).version, full, 3600)
    with pytest.raises(LockTimeout) as caught:
        service.acquire("ann", wait_timeout=1)
    assert caught.value.holder is not None
    assert caught.value.holder.token == lease.token
    service.release(lease)
    assert service.holder("ann") is None


@pytest.mark.parametrize(
    "text", ["\x1b]0;owned\x07\x1b[2J", "a\r\nb", "\u202e", "\ud800", "x" * 10**6]
)
def test_the_words_of_a_server_are_printable_and_short(text: str) -> None:
    trouble = StoreUnavailable(f"redis at h:1: {text}")
    for said in (trouble.reason, str(trouble)):
        assert said.isprintable()
        assert len(said) <= 501
    with contextlib.suppress(UnicodeEncodeError):
        assert trouble.reason.encode()
