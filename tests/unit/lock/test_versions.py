"""Two releases at the same time, as in a rolling deploy: fixed formats, and allowed additions.

The rules are in docs/protocol.md. The records of other releases are literals here: those of a past
release must be parsed, and those of a later one must do no harm.
"""

from __future__ import annotations

import json

import pytest

from tests.leases import as_stored, existing
from userlock import LockService
from userlock.errors import LockTimeout
from userlock.lock.lease import Holder
from userlock.lock.record import BlockedOn, Record, aged, blocked, done, joining
from userlock.lock.store import Stored
from userlock.stores import MemoryStore
from userlock.stores.keys import KeySpace
from userlock.testing import ManualClock

TOKEN = "a" * 24 + "1"
OTHER = "b" * 24 + "1"
#: The first line of a later release: more fields after the known ones.
LATER = json.dumps(
    [TOKEN, "interactive", 1763640000.123, 60.0, "web-1/77", "POST /answers", "trace-17", {"v": 2}]
).encode()
#: Lines that only a later release understands.
NEWS = b'\n% a line of a later release\n+x cccc 1763640000.150 ["web-9/1","?"]'


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [
        (
            as_stored(Holder(TOKEN, "interactive", 1763640000.1234, 60.0, "web-1/77", "POST /")),
            b'["%b","interactive",1763640000.1234,60.0,"web-1/77","POST /"]' % TOKEN.encode(),
        ),
        (
            joining(Holder(OTHER, "batch", 1763640000.17, 60.0, "jobs-1/9", "nightly")),
            b'\n+b %b 1763640000.170 ["jobs-1/9", "nightly"]' % OTHER.encode(),
        ),
        (
            joining(Holder(OTHER, "interactive", 1763640000.17, 60.0, "w/1", ""), again=True),
            b'\n~i %b 1763640000.170 ["w/1", ""]' % OTHER.encode(),
        ),
        (done(TOKEN), b"\n= " + TOKEN.encode()),
        (done(TOKEN, by="olga"), b'\n= %b "olga"' % TOKEN.encode()),
        (aged(OTHER), b"\n^ " + OTHER.encode()),
        (
            blocked(TOKEN, BlockedOn("another", 1763640000.2, "4f05")),
            b'\n! %b ["another", 1763640000.2, "4f05"]' % TOKEN.encode(),
        ),
        (KeySpace("learn").lock("ann"), b"learn:lock=ann"),
        (
            KeySpace("learn").lock("ann smith"),
            b"learn:lock#1216f1dd03c30ac4f4c6dd4be754ba415ea06e1c3e805ec2c8b4909c5145a973",
        ),
    ],
)
def test_written_formats_stay_unchanged(written: bytes, bytes_: bytes) -> None:
    """Released versions read these, under these keys. A change here needs a new key."""
    assert written == bytes_


def test_a_later_holder_is_known_by_its_token() -> None:
    record = Record(Stored(LATER + NEWS, 1, lapsed=False))
    assert record.holder.token == TOKEN
    assert record.holder.request == "POST /answers"
    assert not record.free
    assert Record(Stored(LATER + NEWS + done(TOKEN), 1, lapsed=False)).free


def test_later_details_of_waiters_are_ignored() -> None:
    line = b'\n+i %b 1763640000.150 ["web-2/12","GET /badges","trace-18"]' % OTHER.encode()
    note = b'\n! %b ["another",1763640000.2,"4f05","more"]' % TOKEN.encode()
    record = Record(Stored(LATER + line + note, 1, lapsed=False))
    (waiter,) = record.waiters()
    assert (waiter.process, waiter.request) == ("web-2/12", "GET /badges")
    assert record.blocked_on == BlockedOn("another", 1763640000.2, "4f05")


def test_a_later_holder_keeps_this_release_out(service: LockService, store: MemoryStore) -> None:
    store.create("ann", LATER + NEWS, 60)
    with pytest.raises(LockTimeout, match="POST /answers"):
        service.acquire("ann", wait_timeout=0)


def test_a_later_waiter_is_served_by_this_releases_holder(
    service: LockService, store: MemoryStore, clock: ManualClock
) -> None:
    """It is handed on with the record, and takes it as its own release does."""
    lease = service.acquire("ann")
    line = b'\n+i %b %.3f ["web-2/12","GET /badges","trace-18"]' % (OTHER.encode(), clock.wall())
    store.append("ann", line)
    service.release(lease)
    record = Record(existing(store.read("ann")))
    assert record.free
    assert record.position_of(OTHER) == 0
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=0)


def test_lines_of_a_later_release_are_lost_at_a_hand_over_and_nothing_else() -> None:
    record = Record(Stored(LATER + NEWS + done(TOKEN), 1, lapsed=False))
    mine = Holder(OTHER, "interactive", 1763640001.0, 60.0, "web-3/1", "GET /")
    succeeded = record.succeeded_by(as_stored(mine), OTHER)
    assert succeeded == as_stored(mine) + b"\n< %b released" % TOKEN.encode()
