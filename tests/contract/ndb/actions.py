"""What handlers and other processes do in the tests of the model layer."""

from __future__ import annotations

from collections.abc import Callable

from google.cloud import ndb

import userlock
from tests.contract.ndb.models import Learner

Elsewhere = Callable[[Callable[[], None]], None]


def change(key: ndb.Key, points: int) -> None:
    """What another process does, under the lock as far as it knows."""
    with userlock.global_lock(key.id()):
        other = key.get()
        other.points += points
        other.put()


def add_five() -> None:
    change(ndb.Key(Learner, "ann"), 5)


def stored_points(name: str = "ann") -> int | None:
    learner = Learner.get_by_id(name, use_cache=False)
    return None if learner is None else learner.points
