"""One run of the job: its time, slow and failing assets, a lease that is lost, long ways down."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.deletion.conftest import Album, Albums, Picture, album_key, jobs, rows
from userlock.deletion import run as run_module
from userlock.deletion.run import Run


def removing(albums: Albums, patch: pytest.MonkeyPatch, remove: Any) -> None:
    """Let pictures' files be removed by a function."""
    plan = albums.tree._plan
    patch.setattr(albums.tree, "_plan", plan._replace(assets={Picture: remove}))


def test_slow_assets_end_a_batch(albums: Albums, monkeypatch: pytest.MonkeyPatch) -> None:
    albums.delete(albums.fill(tracks=4))
    sizes = []
    delete_all = Run._delete_all

    def measured(self: Run, batch: Any) -> int:
        sizes.append(len(batch))
        return delete_all(self, batch)

    monkeypatch.setattr(Run, "_delete_all", measured)
    unlink = albums.remove_file

    def slowly(picture: Any) -> None:
        albums.clock.advance(0.4)
        unlink(picture)

    removing(albums, monkeypatch, slowly)
    albums.run_jobs(times=4)
    assert albums.left() == {}
    assert max(sizes) <= 4


def test_slow_assets_that_fail_are_passed(albums: Albums, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt comes to the others; one that deletes nothing is a failed one."""
    monkeypatch.setattr(run_module, "RUN_SECONDS", 2.0)
    key = albums.fill(tracks=3)
    unlink = albums.remove_file
    busy = {path.name for path in albums.files.iterdir() if "deep" in path.name}

    def slowly(picture: Any) -> None:
        if picture.file in busy:
            albums.clock.advance(1.5)  # the lease has ten seconds
            raise OSError("the storage is down")
        unlink(picture)

    removing(albums, monkeypatch, slowly)
    albums.delete(key)
    albums.run_jobs(times=8)
    assert {path.name for path in albums.files.iterdir()} == busy
    (job,) = jobs()
    assert "the storage is down" in job.last_error
    assert job.tries >= 1


def test_a_lease_that_is_lost_ends_the_run(albums: Albums, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no fault of the entities, and no asset goes without the lock."""
    albums.delete(albums.fill())
    removed: list[str] = []
    unlink = albums.remove_file

    def and_lose(picture: Any) -> None:
        unlink(picture)
        removed.append(picture.file)
        if len(removed) == 1:
            albums.clock.advance(1000)  # the lease runs out in the middle of a batch

    removing(albums, monkeypatch, and_lose)
    albums.mailbox.deliver_all()
    assert [row.error for row in rows()] == [""]
    assert removed[0] not in removed[1:2]
    albums.run_jobs(times=3)
    assert albums.left() == {}
    assert albums.outbox.dead.list() == []


def test_a_long_way_down_lets_requests_pass(
    albums: Albums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a checkpoint between queries, before the first entity is deleted."""
    monkeypatch.setattr(run_module, "_CHECKPOINT_SECONDS", 0.0)
    albums.delete(chain(12))
    yields: list[int] = []
    yield_ = Run._yield

    def noted(self: Run) -> None:
        yields.append(Picture.query().count())
        yield_(self)

    monkeypatch.setattr(Run, "_yield", noted)
    albums.run_jobs()
    assert yields.count(12) > 12
    assert albums.left() == {}


def chain(length: int) -> Any:
    """Store an album with a chain of pictures, each of which names the one before it."""
    key = album_key()
    keys = [ndb.Key(Picture, f"p{number}") for number in range(length)]
    with userlock.global_lock("ann"):
        Album(key=key, title="x").put()
        ndb.put_multi(
            [
                Picture(key=each, fan="ann", of=of, file="none")
                for each, of in zip(keys, [key, *keys], strict=False)
            ]
        )
    return key


def test_an_entity_that_is_found_twice_counts_once(albums: Albums) -> None:
    key = album_key()
    with userlock.global_lock("ann"):
        Album(key=key, title="x").put()
        for number in range(9):
            Picture(id=number + 1, parent=key, fan="ann", of=key, file="none").put()
    albums.delete(key)
    albums.run_jobs(times=2)
    assert [row.deleted for row in rows()] == [9]
    assert albums.left() == {}
