"""What has broken the model layer once, and must not again."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from google.cloud import ndb

import emulator
import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.actions import Elsewhere

pytestmark = [pytest.mark.usefixtures("context", "_quick_retries"), EACH_MODE]


class Attacked(userlock.Model):
    _write_policy = userlock.WritePolicy.unsafe("fenced all the same")
    notes = ndb.StringProperty(repeated=True)


def notes(key: Any) -> list[str] | None:
    found = key.get(use_cache=False)
    return None if found is None else list(found.notes)


@pytest.fixture
def key(context: Any) -> Any:
    key = Attacked(id="ann", notes=["0"]).put()
    context.clear_cache()
    return key


def test_an_allocated_id_that_others_have_learned(elsewhere: Elsewhere) -> None:
    made: list[Any] = []

    def work() -> None:
        new = Attacked(notes=["mine"])
        new.put()
        if not made:
            made.append(new.key)
            elsewhere(lambda: Attacked(key=new.key, notes=["theirs"]).put() and None)

    # Refused; or taken for contention and run again, with another id.
    with contextlib.suppress(userlock.EntityExistsError):
        ndb.transaction(work)
    assert notes(made[0]) == ["theirs"]


def test_a_lost_transaction_that_deletes_what_is_missing(datastore: emulator.Emulator) -> None:
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        ndb.Key(Attacked, "nobody").delete()
        Attacked(notes=["1"]).put_async()

    datastore.faults.unavailable(1, rpc="Commit")
    datastore.faults.abort()
    try:
        ndb.transaction(work)
    except userlock.CommitInDoubt:
        assert Attacked.query().count() == 0
    else:
        assert Attacked.query().count() == 1


def test_a_put_when_the_transaction_has_been_rolled_back() -> None:
    told: list[Exception] = []

    def work() -> None:
        new = Attacked(id="late")

        def put() -> None:
            with pytest.raises(userlock.WriteAfterCommit) as caught:
                new.put()
            told.append(caught.value)

        ndb.get_context().call_on_transaction_complete(put)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ndb.transaction(work)
    assert len(told) == 1


def test_a_delete_and_a_put_of_what_was_read_before(key: Any, elsewhere: Elsewhere) -> None:
    mine = key.get(use_cache=False)

    def add() -> None:
        other = key.get()
        other.notes.append("theirs")
        other.put()

    def work() -> None:
        key.delete()
        mine.put()

    elsewhere(add)
    mine.notes.append("mine")
    with pytest.raises(userlock.StaleWriteError):
        ndb.transaction(work)
    assert notes(key) == ["0", "theirs"]


def test_three_puts_of_one_entity_at_once(key: Any) -> None:
    entity = key.get()

    @ndb.tasklet
    def later(note: str) -> Any:
        yield ndb.sleep(0)
        entity.notes.append(note)
        yield entity.put_async()

    ndb.wait_all([entity.put_async(), later("a"), later("b")])
    assert sorted(notes(key) or []) == ["0", "a", "b"]
