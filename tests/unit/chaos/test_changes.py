"""Several changes of one object: the accepted ones, by the outcomes of its puts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb

import userlock
from tests.chaos import models
from tests.chaos.history import History, read
from tests.chaos.programs import Accident, Guard, Operation, Read, Way
from tests.chaos.record import Outcome, Recorder
from tests.chaos.request import Changes, Request

ACCEPTED, REFUSED, UNKNOWN = Outcome.ACCEPTED, Outcome.REFUSED, Outcome.UNKNOWN

LOST_REPLY = google_errors.ServiceUnavailable("the reply was lost")


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    """Open a context for keys. Nothing is sent."""
    with ndb.Client(project="none", credentials=AnonymousCredentials()).context():
        yield


class _Noting:
    """A request, and its records."""

    def __init__(self, path: Path, guard: Guard) -> None:
        self._path = path
        self.recorder = Recorder(path)
        operation = Operation(
            name="o",
            entities=("ann/c0",),
            way=Way.SHARED,
            guard=guard,
            read=Read.GET,
            accident=Accident.NOTHING,
            pause=0.0,
            wait=0.0,
            batch=False,
        )
        nobody: Any = None
        self.request = Request(operation, self.recorder, nobody)

    def changes(self) -> Changes:
        return self.request.changes("ann/c0", None)

    def history(self) -> History:
        return read([self._path])

    def reported(self) -> list[Outcome]:
        return [write.outcome for write in self.history().writes.values()]


@pytest.fixture
def guard() -> Guard:
    return Guard.SUPPRESSED


@pytest.fixture
def noting(tmp_path: Path, guard: Guard) -> Iterator[_Noting]:
    noting = _Noting(tmp_path / "notes", guard)
    with contextlib.closing(noting.recorder):
        yield noting


def ends_with(error: Exception | None) -> Callable[[], None]:
    def put() -> None:
        if error is not None:
            raise error

    return put


def stale() -> userlock.StaleWriteError:
    return userlock.StaleWriteError(
        key=None, lock_id=None, read_version=1, found_version=2, read_at=None, put_at=None
    )


@pytest.mark.parametrize(
    ("first", "second", "reported"),
    [
        (None, None, [ACCEPTED, ACCEPTED]),
        (None, stale(), [ACCEPTED, REFUSED]),
        # The second put carried both changes.
        (stale(), None, [ACCEPTED, ACCEPTED]),
        (stale(), stale(), [REFUSED, REFUSED]),
        (stale(), LOST_REPLY, [UNKNOWN, UNKNOWN]),
        (LOST_REPLY, stale(), [UNKNOWN, REFUSED]),
        (LOST_REPLY, None, [ACCEPTED, ACCEPTED]),
    ],
)
def test_a_change_is_there_if_any_put_that_carried_it_is(
    noting: _Noting, first: Exception | None, second: Exception | None, reported: list[Outcome]
) -> None:
    changes = noting.changes()
    for error in (first, second):
        changes.change()
        changes.put(ends_with(error))
    changes.settle()
    assert noting.reported() == reported


def test_each_builds_on_the_one_before(noting: _Noting) -> None:
    changes = noting.changes()
    changes.change()
    changes.change()
    assert (changes.entity.count, changes.entity.last) == (2, "o.2")
    changes.put(ends_with(None))
    assert changes.landed
    changes.settle()
    writes = noting.history().writes.values()
    assert [(write.id, write.before) for write in writes] == [("o.1", None), ("o.2", "o.1")]
    assert {write.outcome for write in writes} == {ACCEPTED}


def test_a_change_in_a_hook_is_carried_by_the_surrounding_put(noting: _Noting) -> None:
    changes = noting.changes()
    changes.change()

    def put() -> None:
        changes.entity._pre_put_hook()

    changes.entity.before_next_put(changes.change)
    changes.put(put)
    changes.put(put)  # the hook runs once
    changes.settle()
    assert noting.reported() == [ACCEPTED, ACCEPTED]


def test_a_change_that_was_never_put_has_not_landed(noting: _Noting) -> None:
    changes = noting.changes()
    changes.change()
    changes.put(ends_with(None))
    changes.change()
    assert not changes.landed
    changes.settle()
    assert noting.reported() == [ACCEPTED, REFUSED]


def test_an_unexpected_error_is_raised(noting: _Noting) -> None:
    changes = noting.changes()
    changes.change()
    changes.put(ends_with(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        changes.settle()


@pytest.mark.parametrize("guard", Guard)
def test_forbidden_writes_are_refused(noting: _Noting, guard: Guard) -> None:
    """No lock is held here."""
    noting.request.write("ann/c0", None)
    noting.request.write(None, None)
    noting.request.write("ann/c0", None, suppressed=True)
    noting.request.write("ann/c0", None, past=True)
    checked = guard not in (Guard.LOGGED_LOCK, Guard.LOGGED, Guard.SUPPRESSED)
    forbidden = [write.forbidden for write in noting.history().writes.values()]
    assert forbidden == [checked, checked, False, True]


@pytest.mark.parametrize("name", ["ann/c0", "ann/m1", "ann/c0-other", "ann/m0.child"])
def test_names_and_keys(name: str) -> None:
    key = models.key_of(name)
    assert models.name_of(key) == name
    assert key.root().id() == "ann"
    marked = name.startswith("ann/m")
    assert issubclass(models.model_of(name), models.MarkedCounter) == marked
    assert models.child_of("ann/m0") == "ann/m0.child"
    assert models.other_name_of("ann/c0") == "ann/c0-other"
