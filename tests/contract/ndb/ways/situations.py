"""The situations, by the locks held at the read and at the write, and the rule."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.ndb.ways.models import Person
from tests.contract.ndb.ways.tables import Gives, WayIn, WayOut, by_somebody_else, ready

#: The points that another request stores.
BY_SOMEBODY_ELSE = 1000


class Held(enum.Enum):
    """The state of the entity's lock at the write."""

    NOTHING = "nothing"
    EARLIER = "an earlier tenure"
    NOW = "the tenure of the write"


class Cell(Protocol):
    """One user, whose entity comes in one way and goes out another."""

    @property
    def user(self) -> str: ...

    @property
    def key(self) -> Any:
        """Return the entity's key."""
        ...

    def ask(self) -> Any:
        """Begin the read."""
        ...

    def read(self) -> Any:
        """Read the entity."""
        ...

    def write(self, entity: Any) -> None:
        """Change the entity and write it."""
        ...


Applies = Callable[[WayIn, WayOut], bool]


@dataclass(frozen=True)
class Situation:
    """The times of the read and the write, relative to the lock.

    Attributes:
        play: reads and writes.
        read: the lock of the reader, as it is at the write.
        written: the lock of the writer.
        changed: whether another request changes the entity in between.
        applies: the ways that it applies to.
    """

    name: str
    play: Callable[[Cell], None]
    read: Held
    written: Held
    changed: bool = False
    applies: Applies = lambda way_in, way_out: True


def expected(
    way_in: WayIn, way_out: WayOut, situation: Situation
) -> type[userlock.UserLockError] | None:
    """Return the error of a cell by the rule; None if the write lands."""
    read, written = situation.read, situation.written
    if way_in.gives is Gives.CREATED and read is Held.NOTHING:
        return userlock.CreatedWithoutLock  # by the way in
    if way_in.gives is Gives.UNLOCKED:
        read = Held.NOTHING
    if way_out.holds_nothing:
        written = Held.NOTHING
    if way_out.deletes:
        if written is Held.NOTHING:
            return userlock.DeletedWithoutLock
        return userlock.StaleWriteError if situation.changed else None
    if way_in.gives is Gives.PARTIAL:
        return userlock.PartialEntityPut
    if way_in.gives is Gives.NEW:
        return (
            userlock.CreatedWithoutLock if written is Held.NOTHING else userlock.EntityExistsError
        )
    violation = VIOLATIONS[read, written]
    if violation is None and situation.changed:
        return userlock.StaleWriteError
    return violation


VIOLATIONS: dict[tuple[Held, Held], type[userlock.WriteViolation] | None] = {
    (Held.NOTHING, Held.NOTHING): userlock.PutWithoutLock,
    (Held.NOTHING, Held.NOW): userlock.ReadWithoutLock,
    (Held.EARLIER, Held.NOTHING): userlock.PutAfterRelease,
    (Held.EARLIER, Held.NOW): userlock.ReadUnderEarlierTenure,
    (Held.NOW, Held.NOW): None,
    # The lock is held, but not by the writer.
    (Held.NOW, Held.NOTHING): userlock.PutWithoutLock,
}


# --- the ones that every way in meets with every way out ---------------------------------------


def without_the_lock(cell: Cell) -> None:
    cell.write(cell.read())


def read_before_the_lock(cell: Cell) -> None:
    entity = cell.read()
    with userlock.global_lock(cell.user):
        cell.write(entity)


def written_after_the_release(cell: Cell) -> None:
    with userlock.global_lock(cell.user):
        entity = cell.read()
    cell.write(entity)


def under_two_tenures(cell: Cell) -> None:
    with userlock.global_lock(cell.user):
        entity = cell.read()
    with userlock.global_lock(cell.user):
        cell.write(entity)


def under_the_lock(cell: Cell) -> None:
    with userlock.global_lock(cell.user):
        cell.write(cell.read())


NOTHING, EARLIER, NOW = Held

BASIC = (
    Situation("without the lock", without_the_lock, NOTHING, NOTHING),
    Situation("read before the lock", read_before_the_lock, NOTHING, NOW),
    Situation("written after the release", written_after_the_release, EARLIER, NOTHING),
    Situation("read under an earlier tenure", under_two_tenures, EARLIER, NOW),
    Situation("under the lock", under_the_lock, NOW, NOW),
)


# --- and others --------------------------------------------------------------------------------


def under_the_lock_of_somebody_else(cell: Cell) -> None:
    with userlock.global_lock(f"not {cell.user}"):
        cell.write(cell.read())


def read_in_an_inner_block(cell: Cell) -> None:
    with userlock.global_lock(cell.user):
        with userlock.global_lock(cell.user):
            entity = cell.read()
        cell.write(entity)


def read_on_both_sides(cell: Cell) -> None:
    """Read the entity, take the lock, and read it again."""
    cell.read()
    with userlock.global_lock(cell.user):
        cell.write(cell.read())


def changed_by_somebody_else(cell: Cell) -> None:
    """Let the lock fail: another request changes the entity after the read."""
    with userlock.global_lock(cell.user):
        entity = cell.read()
        by_somebody_else(lambda: _change(cell.key))
        cell.write(entity)


def _change(key: Any) -> None:
    other = key.get()
    other.points = BY_SOMEBODY_ELSE
    other.put()


def in_one_transaction(cell: Cell) -> None:
    with userlock.global_lock(cell.user):
        ndb.transaction(lambda: cell.write(cell.read()))


def with_the_lock_inside(cell: Cell) -> None:
    ndb.transaction(lambda: under_the_lock(cell))


def without_any_lock(cell: Cell) -> None:
    ndb.transaction(lambda: cell.write(cell.read()))


def tried_twice(cell: Cell) -> None:
    attempts: list[int] = []

    def attempt() -> None:
        cell.write(cell.read())
        attempts.append(1)
        if len(attempts) == 1:
            raise google_errors.Aborted("contention")

    with userlock.global_lock(cell.user):
        ndb.transaction(attempt)
    assert len(attempts) == 2


def answered_before(cell: Cell) -> None:
    """Send the look-up and get its answer before the lock; take the result under it."""
    first = ndb.Key(Person, f"not {cell.user}").get_async()
    asked = cell.ask()
    first.get_result()  # goes with the same look-up
    with userlock.global_lock(cell.user):
        cell.write(ready(asked))


def asked_before(cell: Cell) -> None:
    asked = cell.ask()
    with userlock.global_lock(cell.user):
        cell.write(ready(asked))


def asked_earlier(cell: Cell) -> None:
    with userlock.global_lock(cell.user):
        first = ndb.Key(Person, f"not {cell.user}").get_async()
        asked = cell.ask()
        first.get_result()
    with userlock.global_lock(cell.user):
        cell.write(ready(asked))


def _reads(way_in: WayIn, way_out: WayOut) -> bool:
    return way_in.gives is not Gives.CREATED


def _seen(way_in: WayIn, way_out: WayOut) -> bool:
    # A delete builds on what its request has seen of the entity: not on an object from elsewhere.
    return not way_out.deletes or way_in.gives in (Gives.WHOLE, Gives.CREATED)


def _inside(way_in: WayIn, way_out: WayOut) -> bool:
    return not way_in.outside and not way_out.outside


def _async(way_in: WayIn, way_out: WayOut) -> bool:
    return way_in.is_async


def _sent_at_once(way_in: WayIn, way_out: WayOut) -> bool:
    return way_in.is_async and way_in.sent_at_once


def _sent_later(way_in: WayIn, way_out: WayOut) -> bool:
    return way_in.is_async and not way_in.sent_at_once


#: The name; what happens; the locks of the reader and of the writer; whether another request
#: changes the entity; the ways that it applies to.
_OTHERS: list[tuple[str, Callable[[Cell], None], Held, Held, bool, Applies]] = [
    ("read before the lock and again under it", read_on_both_sides, NOW, NOW, False, _reads),
    ("changed by another request in between", changed_by_somebody_else, NOW, NOW, True, _seen),
    ("in a transaction under the lock", in_one_transaction, NOW, NOW, False, _inside),
    ("in a transaction, the lock inside", with_the_lock_inside, NOW, NOW, False, _inside),
    ("in a transaction, without the lock", without_any_lock, NOTHING, NOTHING, False, _inside),
    ("in a transaction that is retried", tried_twice, NOW, NOW, False, _inside),
    (
        "sent and answered before the lock, awaited under it",
        answered_before,
        NOTHING,
        NOW,
        False,
        _async,
    ),
    ("sent and answered under an earlier tenure", asked_earlier, EARLIER, NOW, False, _async),
    ("sent before the lock, answered under it", asked_before, NOTHING, NOW, False, _sent_at_once),
    (
        "called before the lock, sent and answered under it",
        asked_before,
        NOW,
        NOW,
        False,
        _sent_later,
    ),
]
OTHERS = (
    Situation("under another user's lock", under_the_lock_of_somebody_else, NOTHING, NOTHING),
    Situation("read in a nested block", read_in_an_inner_block, NOW, NOW),
    *(Situation(*each) for each in _OTHERS),
)
