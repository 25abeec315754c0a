"""Writes of the library's own rows past ndb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core.exceptions import RetryError
from google.cloud import ndb

from userlock.datastore_rpc import Endpoint, Mutation
from userlock.errors import WriteNotFenced
from userlock.ndb import direct
from userlock.ndb.direct import ask, swap
from userlock.ndb.patches import raw_key_of
from userlock.ndb.provenance import version_of
from userlock.outbox.rows import JobRow, RelayRow, new_key
from userlock.waits import run
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("context", "quick_retries")


def job(owner: str = "ann") -> Any:
    """Store a job, and return it as it is read."""
    row = JobRow(key=new_key(owner, 1), outbox="", owner=owner, job="work", ready_at=1)
    row.look_at(0)
    row.enqueue()
    row.put()
    return read(row.key)


def lease() -> Any:
    """Store a relay's lease, and return it as it is read."""
    return read(RelayRow(id="|07", token="one", until=5).put())


def read(key: Any) -> Any:
    return key.get(use_cache=False, use_global_cache=False)


def stored(key: Any) -> Any:
    """Return the message of an entity, without its write id, and the version."""
    (found,) = ask("lookup", [raw_key_of(key)]).found
    found.entity.DiscardUnknownFields()  # the version that a read has noted
    assert found.entity.properties.pop("write_id").exclude_from_indexes
    return found.entity, found.version


@pytest.mark.parametrize("make", [job, lease])
def test_a_row_is_stored_as_ndb_stores_it(make: Callable[[], Any]) -> None:
    row = make()
    row.put()
    by_ndb, before = stored(row.key)
    assert swap([row]) == [True]
    written, version = stored(row.key)
    assert written == by_ndb
    assert before < version == version_of(row)
    assert swap([row]) == [True], "it stands for the version that it was given"
    row.put()
    row.key.delete()
    assert read(row.key) is None, "and so it does for ndb"


def test_those_that_have_changed_are_refused_and_the_others_written() -> None:
    old, other, gone = job(), job(), job("bob")
    read(old.key).put()
    gone.key.delete()
    for each in (old, other, gone):
        each.claim = "mine"
    assert swap([old, other, gone]) == [False, True, False]
    assert [row and row.claim for row in map(read, (old.key, other.key, gone.key))] == [
        "",
        "mine",
        None,
    ]


def test_a_changed_row_is_not_removed() -> None:
    old = job()
    read(old.key).put()
    assert swap([old], delete=True) == [False]
    assert read(old.key) is not None


@pytest.mark.parametrize("recognised", [True, False], ids=["recognised", "the control"])
@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("lost", [1, 3])
def test_a_lost_reply(
    datastore: Emulator, monkeypatch: pytest.MonkeyPatch, lost: int, delete: bool, recognised: bool
) -> None:
    """The write is sent again, is refused because it has landed, and recognises itself."""
    if not recognised:
        monkeypatch.setattr(direct, "_landed_before", lambda *_: None)
    rows = [job(), job("bob")]
    for row in rows:
        row.claim = "mine"
    datastore.faults.drop_reply(lost, kind="UserLockJob")
    assert swap(rows, delete=delete) == [recognised] * 2
    for row in rows:
        found = read(row.key)
        if delete:
            assert found is None
        else:
            assert found.claim == "mine"
            assert (version_of(found) == version_of(row)) == recognised


def test_a_datastore_that_does_not_answer(
    datastore: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = job()
    monkeypatch.setattr(direct.again, "_timeout", 0.01)
    with datastore.faults.unavailable(None), pytest.raises(RetryError):
        swap([row])
    assert version_of(read(row.key)) == version_of(row)
    assert swap([row]) == [True]


@pytest.mark.parametrize("delete", [False, True])
def test_a_server_without_fences(monkeypatch: pytest.MonkeyPatch, delete: bool) -> None:
    row = job()
    monkeypatch.setattr(direct, "honours_base_version", lambda client: False)
    with pytest.raises(WriteNotFenced, match="base_version"):
        swap([row], delete=delete)
    assert version_of(read(row.key)) == version_of(row)


def test_others_pass_the_gate() -> None:
    """A commit by the endpoint itself is no way past it."""
    row = job()
    endpoint = Endpoint(ndb.get_context().client)
    with pytest.raises(WriteNotFenced):
        run(endpoint.commit, Mutation(delete=raw_key_of(row.key)), 5.0)
    assert read(row.key) is not None
