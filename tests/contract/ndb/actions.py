"""Actions of handlers and other processes in the tests of the model layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.cloud import ndb

import userlock
from tests.contract.ndb.models import Learner
from tests.unit.emulator.waiting import Started
from userlock.ndb.context import request_notes
from userlock.ndb.provenance import Ledger
from userlock.testing import allow_unlocked

Put = Callable[[Any], object]
Elsewhere = Callable[[Callable[[], None]], None]
Overtake = Elsewhere
Beside = Callable[[Callable[[], None]], Started]
#: Points and name of a `Learner`; None when there is none.
Facts = tuple[int, str | None] | None


def change(key: ndb.Key, points: int) -> None:
    """Write as another process, under the lock as far as it knows."""
    with userlock.global_lock(key.id()):
        other = key.get()
        other.points += points
        other.put()


def add_five() -> None:
    change(ndb.Key(Learner, "ann"), 5)


def add_points(points: int = 1) -> None:
    """Get, modify, put; the lock is the caller's business."""
    learner = Learner.get_by_id("ann")
    learner.points += points
    learner.put()


def stored_points(name: str = "ann") -> int | None:
    learner = Learner.get_by_id(name, use_cache=False)
    return None if learner is None else learner.points


def forget_reads() -> None:
    """Go on as another request, which has read nothing."""
    ndb.get_context().clear_cache()
    request_notes().ledger = Ledger()


def stored(key: Any) -> Facts:
    """Return the stored state, past all caches."""
    found = key.get(use_cache=False)
    return None if found is None else (found.points, found.name)


def stored_elsewhere(key: Any, elsewhere: Elsewhere) -> Facts:
    facts: list[Facts] = []
    elsewhere(lambda: facts.append(stored(key)))
    return facts[0]


def put_in_tasklet(entity: Any) -> None:
    @ndb.tasklet
    def write() -> Any:
        yield entity.put_async()

    write().result()


PUTS: dict[str, Put] = {
    "put": lambda entity: entity.put(),
    "put_async": lambda entity: entity.put_async().result(),
    "put_multi": lambda entity: ndb.put_multi([entity]),
    "tasklet": put_in_tasklet,
}
DELETES: dict[str, Put] = {
    "delete": lambda entity: entity.key.delete(),
    "delete_async": lambda entity: entity.key.delete_async().result(),
    "delete_multi": lambda entity: ndb.delete_multi([entity.key]),
}


def arranged(entity: Any) -> Any:
    """Return an entity as Datastore has it."""
    with allow_unlocked("arranging data"):
        entity.put()
    return entity.key.get(use_cache=False)


def check_policy_message(error: userlock.WriteViolation, entity: Any) -> None:
    """Check that a message names the entity, its policy, the call site, and the fix."""
    message = str(error)
    assert error.key == entity.key
    assert error.lock_id is None
    assert f"write policy: {type(entity)._write_policy}" in message
    assert error.policy == str(type(entity)._write_policy)
    assert "/tests/contract/ndb/" in str(error.put_at)
    assert "To fix it: " in message
