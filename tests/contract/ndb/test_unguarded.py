"""`unguarded="why"`: one put or delete without a check. It is fenced all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, change, stored
from tests.contract.ndb.models import Learner

WHY = "the import job owns these entities"


def delete_in_a_transaction(learner: Any) -> None:
    ndb.transaction(lambda: userlock.delete(learner.key, unguarded=WHY))


PUTS: dict[str, Callable[[Any], object]] = {
    "put": lambda learner: learner.put(unguarded=WHY),
    "put with options": lambda learner: learner.put(unguarded=WHY, use_cache=False),
    "put_async": lambda learner: learner.put_async(unguarded=WHY).result(),
    "in a transaction": lambda learner: ndb.transaction(lambda: learner.put(unguarded=WHY)),
}
DELETES: dict[str, Callable[[Any], object]] = {
    "delete": lambda learner: userlock.delete(learner.key, unguarded=WHY),
    "delete in a transaction": delete_in_a_transaction,
}
WRITES = PUTS | DELETES


@pytest.mark.parametrize("write", WRITES)
def test_it_is_not_checked(key: Any, write: str) -> None:
    learner = key.get()
    learner.points += 5
    WRITES[write](learner)
    assert stored(key) == (None if write in DELETES else (5, None))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_it_is_fenced(key: Any, elsewhere: Elsewhere, write: Callable[[Any], object]) -> None:
    learner = key.get()
    elsewhere(lambda: change(key, 100))
    learner.points += 5
    with pytest.raises(userlock.StaleWriteError):
        write(learner)
    assert stored(key) == (100, None)


@pytest.mark.parametrize("reason", ["", " ", 1])
def test_it_needs_a_reason(key: Any, reason: Any) -> None:
    learner = key.get()
    with pytest.raises(ValueError, match="say why"):
        learner.put(unguarded=reason)
    with pytest.raises(ValueError, match="say why"):
        userlock.delete(key, unguarded=reason)


def test_a_delete_takes_a_key(key: Any) -> None:
    with pytest.raises(TypeError, match="ndb_key must be a key, not Learner"):
        userlock.delete(key.get(), unguarded=WHY)


class Hooked(userlock.UserModel):
    """Puts and deletes others from its hooks."""

    _lock_id_from_key = userlock.key_id
    other: Any = None

    def _pre_put_hook(self) -> None:
        Learner(id="other").put()

    @classmethod
    def _pre_delete_hook(cls, key: Any) -> None:
        ndb.Key(Learner, "ann").delete()


@pytest.mark.usefixtures("key")
def test_it_holds_for_no_write_within() -> None:
    with pytest.raises(userlock.CreatedWithoutLock):
        Hooked(id="x").put(unguarded=WHY)
    with pytest.raises(userlock.DeletedWithoutLock):
        userlock.delete(ndb.Key(Hooked, "x"), unguarded=WHY)


def test_a_plain_model_is_deleted_as_ever(context: Any) -> None:
    class Plain(ndb.Model):
        pass

    key = Plain(id="x").put()
    userlock.delete(key, unguarded=WHY)
    assert key.get() is None
