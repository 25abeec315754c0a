"""`put_multi` and `delete_multi`: all are begun, or none if one of them is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import stored
from tests.contract.ndb.models import Learner, Plain
from userlock.ndb.fencing import Ticket

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
        monkeypatch.setattr(Ticket, "withdraw", lambda self: None)
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
