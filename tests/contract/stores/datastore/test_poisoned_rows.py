"""Garbage in a lock's row: in its record, or in its other properties."""

from __future__ import annotations

import contextlib
import datetime
import uuid

import pytest
from google.cloud import ndb
from hypothesis import example, given
from hypothesis import strategies as st

from tests.contract.stores.datastore.conftest import SERVER_CLOCK, UserLockLease
from tests.contract.stores.test_poisoned_servers import is_free, meet, on_a_server, service_on
from tests.leases import existing
from tests.poison import values
from userlock.errors import LockError
from userlock.stores.datastore import DatastoreStore
from userlock.stores.datastore.rows import EXPIRE_AT, LEASED_AT, RECORD, TTL, WRITE_ID

# ndb takes them without a time zone.
EARLIEST = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC).replace(tzinfo=None)
LATEST = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC).replace(tzinfo=None)
_properties = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.binary(max_size=20),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.datetimes(),
    st.lists(st.integers(0, 5), max_size=2),
)
rows = st.fixed_dictionaries(
    {}, optional=dict.fromkeys((RECORD, TTL, LEASED_AT, EXPIRE_AT, WRITE_ID, "other"), _properties)
)


@on_a_server
@given(values)
def test_in_its_record(store: DatastoreStore, value: bytes) -> None:
    meet(store, value)


@on_a_server
@given(rows)
@example({RECORD: b"", TTL: 2**63 - 1})
@example({RECORD: b"", TTL: -(2**63), EXPIRE_AT: EARLIEST})
@example({RECORD: b"", TTL: 60_000_000, LEASED_AT: LATEST})
@example({RECORD: "text", TTL: "60"})
@example({RECORD: [1], TTL: [2]})
def test_in_its_properties(
    client: ndb.Client, store: DatastoreStore, row: dict[str, object]
) -> None:
    service, lock_id = service_on(store), uuid.uuid4().hex
    with client.context():
        UserLockLease(id=f"userlock={lock_id}", **row).put()
    SERVER_CLOCK.ahead += 10  # a row without a time to live does not lapse in between
    with contextlib.suppress(LockError):
        was_free = is_free(service, lock_id)
        lease = service.acquire(lock_id, wait_timeout=0)
        assert was_free
        assert not lease.degraded
        service.release(lease)


def test_a_row_of_ours_is_held(client: ndb.Client, store: DatastoreStore) -> None:
    """The control: such rows are read at all."""
    row = {RECORD: b'["4f01","interactive",1,60,"web","GET /"]', TTL: 60_000_000}
    with client.context():
        UserLockLease(id="userlock=ann", **row).put()
    assert existing(service_on(store).holder("ann")).process == "web"
    with pytest.raises(LockError, match="held by GET /"):
        service_on(store).acquire("ann", wait_timeout=0)
