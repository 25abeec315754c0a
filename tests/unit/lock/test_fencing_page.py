"""The examples of fencing numbers in docs/fencing.md."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

import userlock
from tests.documents import Page
from userlock import LockService
from userlock.testing import ManualClock

PAGE = Page("docs/fencing.md")
NUMBER = PAGE.take("python", "lock.fence  #")
SQL = PAGE.take("python", "UPDATE progress")
BUCKET = PAGE.take("python", "if_generation_match")


@pytest.fixture(autouse=True)
def _configured(configured: None) -> None:
    """Use the service of these tests."""


def test_the_number() -> None:
    NUMBER.run({"userlock": userlock, "user_id": "ann"})


class Late:
    """A holder that is paused for longer than its lease, while another one writes."""

    def __init__(self, clock: ManualClock, elsewhere: LockService, write: Any) -> None:
        self._clock = clock
        self._elsewhere = elsewhere
        self._write = write

    def pause(self) -> None:
        self._clock.advance(61)
        with userlock.scope(self._elsewhere):
            self._write()


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE progress (user_id TEXT, text TEXT, fence INTEGER)")
    database.execute("INSERT INTO progress VALUES ('ann', 'first', 0)")
    yield database
    database.close()


def test_a_database_refuses_a_late_write(
    database: sqlite3.Connection, clock: ManualClock, elsewhere: LockService
) -> None:
    save: Any = SQL.run({"userlock": userlock})["save_progress"]
    save(database, "ann", "second")

    class Paused:
        def execute(self, statement: str, values: tuple[object, ...]) -> sqlite3.Cursor:
            Late(clock, elsewhere, lambda: save(database, "ann", "later")).pause()
            return database.execute(statement, values)

    with pytest.raises(RuntimeError, match="a later holder"):
        save(Paused(), "ann", "too late")
    assert database.execute("SELECT text FROM progress").fetchall() == [("later",)]
    save(database, "ann", "once more")


class Bucket:
    def __init__(self) -> None:
        self.objects: dict[str, tuple[int, dict[str, str], bytes]] = {}

    def get_blob(self, name: str) -> Blob | None:
        return Blob(self, name) if name in self.objects else None

    def blob(self, name: str) -> Blob:
        return Blob(self, name)


class Blob:
    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket, self._name = bucket, name
        found = bucket.objects.get(name)
        self.generation = None if found is None else found[0]
        self.metadata: dict[str, str] | None = None if found is None else dict(found[1])

    def upload_from_string(self, data: bytes, *, if_generation_match: int) -> None:
        present = self._bucket.objects.get(self._name, (0, {}, b""))[0]
        if present != if_generation_match:
            raise LookupError("412 Precondition Failed")
        self._bucket.objects[self._name] = present + 1, self.metadata or {}, data


def test_a_bucket_refuses_a_late_write(clock: ManualClock, elsewhere: LockService) -> None:
    save: Any = BUCKET.run({"userlock": userlock})["save_report"]
    bucket = Bucket()
    save(bucket, "ann", b"first")
    save(bucket, "ann", b"second")

    class PausedBefore(Bucket):
        def get_blob(self, name: str) -> Blob | None:
            Late(clock, elsewhere, lambda: save(bucket, "ann", b"later")).pause()
            return bucket.get_blob(name)

    # It asks for its number after the pause, and gets none.
    with pytest.raises(userlock.LockNotHeld):
        save(PausedBefore(), "ann", b"too late")

    class PausedAfter(Bucket):
        def get_blob(self, name: str) -> Blob | None:
            blob = bucket.get_blob(name)
            Late(clock, elsewhere, lambda: save(bucket, "ann", b"later still")).pause()
            return blob

    with pytest.raises((LookupError, userlock.LockNotHeld)):
        save(PausedAfter(), "ann", b"too late")
    assert bucket.objects["reports/ann"][2] == b"later still"
