"""Cells of the table: run, and compared with the rule."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import forget_reads
from tests.contract.ndb.ways.situations import BY_SOMEBODY_ELSE, Held, Situation, expected
from tests.contract.ndb.ways.tables import Gives, WayIn, WayOut, ready
from userlock.testing import allow_unlocked

_numbers = itertools.count(1)
_ADDED = 5


@dataclass(frozen=True)
class PlayedCell:
    """Implements `situations.Cell`."""

    user: str
    way_in: WayIn
    way_out: WayOut
    situation: Situation

    def __str__(self) -> str:
        return f"{self.way_in.name}, {self.way_out.name}, {self.situation.name}"

    @property
    def key(self) -> Any:
        return ndb.Key(self.way_in.model, self.user)

    def ask(self) -> Any:
        return self.way_in.read(self.user)

    def read(self) -> Any:
        return ready(self.ask())

    def write(self, entity: Any) -> None:
        if self.way_in.gives is not Gives.PARTIAL:  # which ndb lets nobody change
            entity.points += _ADDED
        ready(self.way_out.write(entity))

    # --- the rule, and the outcome ----------------------------------------------------------

    @property
    def expected(self) -> type[userlock.UserLockError] | None:
        return expected(self.way_in, self.way_out, self.situation)

    @property
    def expected_points(self) -> int | None:
        """Return the points of the stored entity afterwards; None if it is missing."""
        if self.expected is None:
            return None if self.way_out.deletes else _ADDED
        if self.situation.changed:
            return BY_SOMEBODY_ELSE
        if self.way_in.gives is Gives.CREATED and self.situation.read is Held.NOTHING:
            return None
        return 0

    def play(self) -> Iterable[str]:
        """Gives what is not as it should be."""
        error: Exception | None = None
        try:
            self.situation.play(self)
        except Exception as raised:
            error = raised
        if type(error) is not (self.expected or type(None)):
            named = "nothing" if self.expected is None else self.expected.__name__
            yield f"{self}: {named} expected, {error!r} was raised"
        elif error is not None:
            for what in self._wrong_in(error):
                yield f"{self}: {what}: {error}"

    def _wrong_in(self, error: Any) -> Iterable[str]:
        if error.key != self.key:
            yield f"names {error.key!r}, not {self.key!r}"
        if error.lock_id != self.user:
            yield f"names lock {error.lock_id!r}"
        created = self.way_in.gives is Gives.CREATED
        by_way_in = created and isinstance(error, userlock.CreatedWithoutLock)
        put_by = self.way_in.read if by_way_in else self.way_out.write
        if not _is_in(error.put_at, put_by):
            yield f"put at {error.put_at}, not by {put_by}"
        if isinstance(error, (userlock.DeletedWithoutLock, userlock.CreatedWithoutLock)) or (
            self.way_in.gives is Gives.NEW
        ):
            if error.read_at is not None:
                yield f"read at {error.read_at}, but it was not"
        elif not self._was_read_at(error.read_at):
            yield f"read at {error.read_at}, not in {self.way_in.name}"

    def _was_read_at(self, place: Any) -> bool:
        if _is_in(place, self.way_in.read):
            return True
        # From the context cache comes the object that was read before.
        return self.situation.read is Held.NOTHING and _is_in(place, self.way_in.prepare)


def _is_in(place: Any, function: Any) -> bool:
    """Return whether a call site is in that function, or in one defined in it."""
    if place is None or function is None:
        return False
    code = function.__code__
    return place.file == code.co_filename and place.line in set(_lines(code))


def _lines(code: types.CodeType) -> Iterator[int]:
    yield from (line for *_, line in code.co_lines() if line is not None)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _lines(each)


def differences(
    way_in: WayIn, ways_out: Sequence[WayOut], situations: Sequence[Situation]
) -> list[str]:
    """Play each situation with each way out; give what was not as the rule says."""
    cells = [
        PlayedCell(f"user {next(_numbers)}", way_in, way_out, situation)
        for way_out in ways_out
        for situation in situations
        if situation.applies(way_in, way_out)
    ]
    with way_in.around():
        return list(_differences(way_in, cells))


def _differences(way_in: WayIn, cells: Sequence[PlayedCell]) -> Iterable[str]:
    with allow_unlocked("arranging data"):
        ndb.put_multi([entity for cell in cells for entity in way_in.arrange(cell.user)])
        forget_reads()
        for cell in cells:
            if way_in.prepare is not None:
                way_in.prepare(cell.user)
    for cell in cells:
        yield from cell.play()
    stored = ndb.get_multi([cell.key for cell in cells], use_cache=False)
    for cell, entity in zip(cells, stored, strict=True):
        points = None if entity is None else entity.points
        if points != cell.expected_points:
            yield f"{cell}: {points} points are stored, not {cell.expected_points}"
