"""`put_multi` and `delete_multi`: all are begun, or none if one of them is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import stored
from tests.contract.ndb.models import Learner, Note, Plain
from userlock.ndb.writes import Write

pytestmark = pytest.mark.usefixtures("key")


def good_and_bad() -> list[Any]:
    good = Learner.get_by_id("ann")
    good.points = 7
    return [good, Plain(id="beside", number=1), Learner(id="bad")]


def keys_of(entities: list[Any]) -> list[Any]:
    return [entity.key for entity in entities]


WRITES: dict[str, tuple[Callable[[list[Any]], object], type[Exception]]] = {
    "put_multi": (ndb.put_multi, userlock.CreatedWithoutLock),
    "put_multi_async": (ndb.put_multi_async, userlock.CreatedWithoutLock),
    "delete_multi": (lambda each: ndb.delete_multi(keys_of(each)), userlock.DeletedWithoutLock),
    "delete_multi_async": (
        lambda each: ndb.delete_multi_async(keys_of(each)),
        userlock.DeletedWithoutLock,
    ),
}


@pytest.mark.parametrize(("write", "error"), WRITES.values(), ids=WRITES.keys())
class TestOneIsRefused:
    def test_so_are_all(self, key: Any, write: Any, error: type[Exception]) -> None:
        with userlock.global_lock("ann"), pytest.raises(error, match="'bad'"):
            write(good_and_bad())
        assert stored(key) == (0, None)

    def test_the_lock_can_be_left_and_used_again(
        self, key: Any, write: Any, error: type[Exception]
    ) -> None:
        """No error is raised a second time."""
        with userlock.global_lock("ann"):
            with pytest.raises(error):
                write(good_and_bad())
            learner = key.get()
            learner.name = "put afterwards"
            learner.put()
        assert stored(key) in ((0, "put afterwards"), (7, "put afterwards"))

    def test_in_a_transaction_that_goes_on(
        self, key: Any, write: Any, error: type[Exception]
    ) -> None:
        def work() -> None:
            with pytest.raises(error):
                write(good_and_bad())

        with userlock.global_lock("ann"):
            ndb.transaction(work)
        assert stored(key) == (0, None)

    def test_without_the_rule_the_allowed_one_lands(
        self, key: Any, write: Any, error: type[Exception], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(Write, "withdraw", lambda self: None)
        with userlock.global_lock("ann"), pytest.raises(error):
            write(good_and_bad())
        assert stored(key) != (0, None)


def test_all_of_them_land(key: Any) -> None:
    with userlock.global_lock("ann"):
        good, plain, _ = good_and_bad()
        assert ndb.put_multi([good, plain]) == [key, plain.key]
        assert stored(key) == (7, None)
        assert ndb.delete_multi([key]) == [None]
    assert stored(key) is None


def delete_with_another(key: Any) -> None:
    with pytest.raises(userlock.DeletedWithoutLock):
        ndb.delete_multi([key, ndb.Key(Learner, "without a lock")])


class TestNoTraceOfADelete:
    """In the history of puts."""

    def test_an_older_object_stays_outdated(self, key: Any) -> None:
        def run() -> None:
            learner, older = key.get(), key.get(use_cache=False)
            learner.points += 1
            learner.put()
            delete_with_another(key)
            older.points += 1_000
            older.put()

        with userlock.global_lock("ann"), pytest.raises(userlock.StaleObjectPut):
            ndb.transaction(run)
        assert stored(key) == (0, None)

    def test_the_next_delete_builds_on_the_latest_put(self, key: Any) -> None:
        with userlock.global_lock("ann"):
            key.get()
            other = key.get(use_cache=False)
            other.points += 1
            other.put(use_cache=False)
            delete_with_another(key)
            key.delete()
        assert stored(key) is None


@pytest.mark.parametrize("times", [1, 2])
def test_no_trace_of_a_put_in_the_history(key: Any, times: int) -> None:
    """Another object is not outdated by it."""

    def run() -> None:
        first, second = key.get(), key.get(use_cache=False)
        with pytest.raises(userlock.CreatedWithoutLock):
            ndb.put_multi([first] * times + [Learner(id="without a lock")])
        second.points = 10
        second.put()

    with userlock.global_lock("ann"):
        ndb.transaction(run)
    assert stored(key) == (10, None)


def test_a_put_around_a_transaction_outdates_the_objects_in_it(key: Any) -> None:
    """It began after the transaction, which cannot wait for it."""
    with userlock.global_lock("ann"):
        first, second = key.get(), key.get(use_cache=False)
        first.points = 10
        inside = ndb.transaction_async(second.put)
        around = first.put_async()
        with pytest.raises(userlock.StaleObjectPut):
            inside.get_result()
        around.get_result()
    assert stored(key) == (10, None)


def test_two_objects_of_one_entity_are_refused_and_none_is_sent(key: Any) -> None:
    with userlock.global_lock("ann"):
        first, second = (Learner.get_by_id("ann", use_cache=False) for _ in range(2))
        for each in (first, second):
            each.points += 5
        with pytest.raises(userlock.StaleObjectPut):
            ndb.put_multi([first, second])
    assert stored(key) == (0, None)


def test_none_is_sent_while_one_of_them_has_a_write_under_way(key: Any) -> None:
    """The second write of an entity waits for the first one, which would send those before it."""
    with userlock.global_lock("ann"):
        learner, _, bad = good_and_bad()
        note = Note(parent=key, id="before")
        under_way = learner.put_async()
        with pytest.raises(userlock.CreatedWithoutLock):
            ndb.put_multi([note, learner, bad])
        under_way.get_result()
        assert stored(key) == (7, None)
        assert note.key.get(use_cache=False) is None
        under_way = learner.put_async()
        with pytest.raises(userlock.DeletedWithoutLock):
            ndb.delete_multi(keys_of([note, learner, bad]))
        under_way.get_result()
    assert stored(key) == (7, None)


@ndb.tasklet
def _put_beside_a_transaction(several: list[Any]) -> Any:
    under_way = several[-1].put_async()

    def save() -> None:
        assert several[-1].key.get() is not None  # it begins after the write
        ndb.put_multi(several[:-1])

    yield ndb.transaction_async(save)
    yield under_way


@pytest.mark.parametrize(
    ("write", "stored_notes"),
    [
        (ndb.put_multi_async, 200),
        (lambda several: ndb.delete_multi_async(keys_of(several)), 0),
        (_put_beside_a_transaction, 200),
    ],
)
def test_many_tasklets_write_at_once(key: Any, write: Any, stored_notes: int) -> None:
    """None waits for another's: a wait runs the event loop, each one inside the one before."""

    @ndb.tasklet
    def save(number: int) -> Any:
        found = yield key.get_async(use_cache=False)
        several = [Plain(id=f"{number}, {each}", number=found.points) for each in range(2)]
        yield write([*several, Note(parent=key, id=f"{number}")])

    with userlock.global_lock("ann"):
        ndb.wait_all(saved := [save(number) for number in range(200)])
        for each in saved:
            each.check_success()
        assert Note.query(ancestor=key).count() == stored_notes
