"""Two objects of one entity in one transaction: the second does not undo the first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from userlock.ndb.writes import Put
from userlock.testing import allow_unlocked

pytestmark = [pytest.mark.usefixtures("context"), EACH_MODE]


class Unsafe(userlock.Model):
    _write_policy = userlock.WritePolicy.unsafe("fenced all the same")
    points = ndb.IntegerProperty(default=0)
    badges = ndb.IntegerProperty(default=0)


class Locked(userlock.UserModel):
    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)
    badges = ndb.IntegerProperty(default=0)


class Overwriting(Unsafe):
    _overwrites = True


def _suppressed() -> AbstractContextManager[object]:
    return allow_unlocked("tried out")


#: How the check is let pass, so that only the fence is left.
LET_PASS: dict[str, tuple[type, Callable[[], AbstractContextManager[object]], str]] = {
    "unsafe": (Unsafe, nullcontext, "raise"),
    "suppressed": (Locked, _suppressed, "raise"),
    "off": (Locked, nullcontext, "off"),
    "log": (Locked, nullcontext, "log"),
}


@pytest.fixture(params=["unsafe"])
def way(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    model, block, enforcement = LET_PASS[request.param]
    with allow_unlocked("arranging data"):
        model(id="ann").put()
    ndb.get_context().clear_cache()
    userlock.configure(enforcement=enforcement)
    return model, block


def facts(model: Any) -> tuple[int, int]:
    found = model.get_by_id("ann", use_cache=False)
    return found.points, found.badges


def two_objects(model: Any) -> None:
    first, second = (model.get_by_id("ann", use_cache=False) for _ in range(2))
    first.points += 5
    second.badges += 1
    first.put()
    second.put()


def a_new_object(model: Any) -> None:
    first = model.get_by_id("ann")
    first.points += 5
    first.put()
    model(id="ann", badges=1).put()


def one_object_twice(model: Any) -> None:
    first = model.get_by_id("ann")
    first.points += 5
    first.put()
    first.badges += 1
    first.put()


def deleted_and_created_again(model: Any) -> None:
    first = model.get_by_id("ann")
    first.points += 5
    first.put()
    first.key.delete()
    model(id="ann", badges=1).put()


def run(way: tuple[Any, Any], work: Callable[[Any], None]) -> tuple[int, int]:
    model, block = way
    with block():
        ndb.transaction(lambda: work(model))
    return facts(model)


@pytest.mark.parametrize("way", LET_PASS, indirect=True)
def test_the_second_object_is_refused(way: tuple[Any, Any]) -> None:
    with pytest.raises(userlock.StaleWriteError):
        run(way, two_objects)
    assert facts(way[0]) == (0, 0)


def test_a_new_object_is_refused(way: tuple[Any, Any]) -> None:
    with pytest.raises(userlock.EntityExistsError):
        run(way, a_new_object)
    assert facts(way[0]) == (0, 0)


def test_a_new_object_of_an_entity_that_is_new_itself_is_refused() -> None:
    """Its id was allocated in this transaction."""

    def work() -> None:
        first = Unsafe(points=5)
        first.put()
        Unsafe(key=first.key, badges=1).put()

    with pytest.raises(userlock.EntityExistsError):
        ndb.transaction(work)
    assert Unsafe.query().count() == 0


def test_one_object_may_be_put_twice(way: tuple[Any, Any]) -> None:
    assert run(way, one_object_twice) == (5, 1)


def test_a_deleted_entity_may_be_created_again(way: tuple[Any, Any]) -> None:
    assert run(way, deleted_and_created_again) == (0, 1)


def test_without_the_rule_an_update_is_lost(
    way: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(Put, "_check_other_object", lambda *_: None)
    assert run(way, two_objects) == (0, 1)


def test_a_model_that_overwrites_may() -> None:
    Overwriting(id="ann").put()
    ndb.transaction(lambda: a_new_object(Overwriting))
    assert facts(Overwriting) == (0, 1)
