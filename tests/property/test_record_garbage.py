"""Any content of a record: it breaks no client and gives no client a right."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.leases import as_stored, existing
from userlock.lock.lease import Holder, new_token
from userlock.lock.record import MOST_WAITERS, BlockedOn, Record, aged, blocked, done, joining
from userlock.lock.store import Stored

ME = Holder(new_token(), "interactive", 1_700_000_000.0, 60.0, "web/1", "GET /")

_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20) | st.integers(),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
_tokens = st.sampled_from([b"4f01", b"4f02", b"", b"\xff", b"a\rb"]) | st.binary(max_size=9)
_notes = st.one_of(
    _json.map(lambda value: json.dumps(value).encode()), st.binary(max_size=30), st.just(b"")
)
_times = st.sampled_from([b"1763640000.150", b"nan", b"-inf", b"1e999", b"", b"x"])
_marks = st.sampled_from([b"+i", b"+b", b"~i", b"~b", b"^", b"=", b"!", b"<", b"+", b"?", b""])

#: Other work on the machine may take longer than Hypothesis expects.
unhurried = settings(deadline=None)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    parts = [draw(_marks), draw(_tokens)]
    if draw(st.booleans()):
        parts.append(draw(_times))
    parts.append(draw(_notes))
    return b" ".join(parts)


@st.composite
def holders(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        return draw(_notes)
    fields = ["4f01", "interactive", 1.0, 60.0, "web/1", "GET /"]
    for _ in range(draw(st.integers(0, 2))):
        fields[draw(st.integers(0, 5))] = draw(_json)
    return json.dumps(fields).encode()


records = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda first, rest: b"\n".join([first, *rest]), holders(), st.lists(lines())),
)


def understood(record: bytes, *, lapsed: bool = False) -> Record:
    return Record(Stored(record, object(), lapsed))


def is_safe(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and len(text) <= 200


@unhurried
@given(records)
@example(b"[" * 100_000)
@example(b"9" * 10_000)
@example(b'["a","b",1e999,NaN,"c","d"]\n= a {\n! a [1e999]\n+i a nan []')
@example(b'"abc123"')
@example(b'{"a":1,"b":2,"1":3,"2":4,"c":5,"d":6}')
def test_everything_can_be_asked_of_it(garbage: bytes) -> None:
    record = understood(garbage)
    holder = record.holder
    assert holder.token != ME.token
    assert all(is_safe(text) for text in (holder.token, holder.priority))
    assert all(is_safe(text) for text in (holder.process, holder.request))
    assert isinstance(holder.since, float)
    assert isinstance(holder.lock_timeout, float)
    assert holder.describe().isprintable()
    assert record.broken_by.isprintable()
    assert record.succeeds_broken("4f01").isprintable()
    assert not record.succeeds_released(ME.token)
    for waiter in record.waiters():
        assert is_safe(waiter.token)
        assert waiter.priority in ("interactive", "batch")
        assert isinstance(waiter.since, float)
        assert is_safe(waiter.process)
        assert is_safe(waiter.request)
    on = record.blocked_on
    assert on is None or (isinstance(on.lock_id, str) and isinstance(on.since, float))
    assert isinstance(record.free, bool)
    assert record.empty == (record.waiters() == [])
    assert record.position_of(ME.token) is None
    assert record.is_turn_of(ME.token) <= record.free
    assert record.can_be_reserved_by(ME.token) <= (record.free and not record.empty)


@unhurried
@given(records)
def test_only_its_holder_holds_the_lock(garbage: bytes) -> None:
    """Its token is nowhere in the record, whatever is added."""
    lines = [joining(ME), joining(ME, again=True), aged(ME.token), done(ME.token)]
    lines.append(blocked(ME.token, BlockedOn("other", 1.0, "4f05")))
    for line in lines:
        record = understood(garbage + line)
        assert record.holder.token != ME.token
        assert record.free == understood(garbage).free


@unhurried
@given(records)
def test_any_caller_can_join_the_queue(garbage: bytes) -> None:
    record = understood(garbage + joining(ME))
    assert record.position_of(ME.token) is not None
    assert record.processes_ahead_of(ME.token) <= (record.position_of(ME.token) or 0)
    assert understood(garbage + joining(ME) + done(ME.token)).position_of(ME.token) is None


@unhurried
@given(records, st.booleans(), st.booleans())
def test_a_claim_becomes_the_holder_and_the_queue_continues(
    garbage: bytes, lapsed: bool, passing: bool
) -> None:
    before = understood(garbage + joining(ME), lapsed=lapsed)
    after = understood(before.succeeded_by(as_stored(ME), ME.token, passing=passing))
    assert after.holder == ME
    assert (after.free, after.broken_by) == (False, "")
    position = existing(before.position_of(ME.token))
    dropped = position if passing else 0
    others = [waiter for waiter in before.waiters() if waiter.token != ME.token]
    assert repr(after.waiters()) == repr(others[dropped:])  # NaN does not equal NaN


@unhurried
@given(records, st.booleans())
def test_a_reserved_lock_is_free_for_the_same_queue(garbage: bytes, lapsed: bool) -> None:
    before = understood(garbage + joining(ME), lapsed=lapsed)
    by = ME._replace(token=new_token())
    content, _ = before.reserved_by(as_stored(by), by.token, besides=ME.token, leaving=True)
    reserved = understood(content)
    assert (reserved.holder, reserved.free, reserved.broken_by) == (by, True, "")
    others = [waiter for waiter in before.waiters() if waiter.token != ME.token]
    assert repr(reserved.waiters()) == repr(others)
    assert not reserved.can_be_reserved_by(ME.token)
    assert not others or reserved.last_held_by == before.last_held_by
    afterwards = understood(reserved.stored.record, lapsed=True)
    assert afterwards.is_turn_of("an unqueued caller")


@unhurried
@given(records)
def test_compaction_keeps_the_meaning(garbage: bytes) -> None:
    before = understood(garbage)
    after = understood(before.compacted())
    assert repr(after.holder) == repr(before.holder)
    assert after.position_of(ME.token) is None
    assert repr(after.waiters()) == repr(before.waiters())  # NaN does not equal NaN
    assert after.compacted() == before.compacted()


@unhurried
@given(st.text(max_size=300), st.text(max_size=300))
@example('a "quoted" \\ one', "a\nb\r\n= 0001")
@example("GET /ü?漢字=🔒", "\ud800")
def test_no_request_can_pass_for_something_else(process: str, request: str) -> None:
    """A path comes from outside: it must not end a lease, or begin a line of its own."""
    holder = ME._replace(token=new_token(), process=process, request=request)
    waiter = holder._replace(token=new_token())
    joined = as_stored(holder) + joining(waiter)
    shown = [
        "".join(c if c.isprintable() else "?" for c in text)[:200] for text in (process, request)
    ]
    (waits,) = understood(joined).waiters()
    holds = understood(joined).holder
    assert [holds.process, holds.request] == [waits.process, waits.request] == shown
    record = understood(joined + done(waiter.token, by=request))
    assert (record.free, record.empty, record.holder.token) == (False, True, holder.token)


@pytest.mark.parametrize("size", [1, 10, MOST_WAITERS])
def test_many_waiters_are_complete(size: int) -> None:
    waiters = [ME._replace(token=new_token(), request=str(number)) for number in range(size)]
    record = understood(as_stored(ME) + b"".join(joining(waiter) for waiter in waiters))
    assert [waiter.request for waiter in record.waiters()] == [str(n) for n in range(size)]
    assert [record.position_of(waiter.token) for waiter in waiters] == list(range(size))


def test_waiters_above_the_bound_are_not_read() -> None:
    """They may join again when another one has left."""
    waiters = [ME._replace(token=new_token()) for _ in range(MOST_WAITERS + 5)]
    text = as_stored(ME) + b"".join(joining(waiter) for waiter in waiters)
    assert not understood(text).room
    assert understood(text).position_of(waiters[-1].token) is None
    left = text + done(waiters[0].token)
    assert understood(left).room
    again = understood(left + joining(waiters[-1]))
    assert again.position_of(waiters[-1].token) == MOST_WAITERS - 1
