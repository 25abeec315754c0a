"""Runs of the job: workers that die, time, assets, a lost lease, requests that pass in between."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.deletion.conftest import (
    Album,
    Albums,
    Picture,
    Track,
    album_key,
    jobs,
    rows,
)
from tests.contract.outbox.conftest import Died, let_die
from tests.waiting import wait_until
from userlock.deletion import run as run_module
from userlock.deletion import unfinished
from userlock.deletion.run import Run
from userlock.deletion.walk import Walk
from userlock.stores import MemoryStore
from userlock.testing import allow_unlocked
from userlock_emulator import Emulator


@pytest.mark.parametrize(
    ("method", "call"),
    [("_delete", 1), ("_delete", 3), ("_delete_all", 2), ("_end_batch", 2), ("_end", 1)],
)
def test_a_worker_that_dies(
    albums: Albums, monkeypatch: pytest.MonkeyPatch, method: str, call: int
) -> None:
    albums.delete(albums.fill())
    with monkeypatch.context() as patch:
        let_die(patch, Run, method, call=call)
        with pytest.raises(Died):
            albums.run_jobs()
    assert list(unfinished()) != []
    albums.run_jobs(times=3)
    assert albums.left() == {}
    assert list(unfinished()) == []


def test_a_worker_that_dies_after_each_batch(
    albums: Albums, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "RUN_SECONDS", 1e9)
    albums.delete(albums.fill())
    deaths = 0
    while list(unfinished()):
        with monkeypatch.context() as patch, contextlib.suppress(Died):
            let_die(patch, Run, "_end_batch", call=1)
            deaths += 1
            albums.run_jobs(times=2)
    assert 5 < deaths < 50
    assert albums.left() == {}


def nothing_added(self: Run, going: Any) -> set[Any]:
    return set()


def test_top_down_a_crash_leaves_orphans(albums: Albums, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    below = Walk.below

    def top_down(self: Walk, root: Any) -> Iterator[Any]:
        yield from reversed(list(below(self, root)))

    monkeypatch.setattr(Walk, "below", top_down)
    monkeypatch.setattr(Run, "_with_additions", nothing_added)
    albums.delete(albums.fill())
    with monkeypatch.context() as patch:
        let_die(patch, Run, "_end_batch", call=2)
        with pytest.raises(Died):
            albums.run_jobs()
    monkeypatch.setattr(Walk, "below", below)
    albums.run_jobs(times=4)
    assert list(unfinished()) == []
    assert albums.left() != {}


@pytest.mark.parametrize("kind", ["Picture", "Remark", "UserLockDeletion"])
def test_lost_replies(albums: Albums, datastore: Emulator, kind: str) -> None:
    albums.fill()
    datastore.faults.drop_reply(3, kind=kind)
    albums.delete(album_key())
    albums.run_jobs(times=4)
    datastore.faults.clear()
    albums.run_jobs(times=2)
    assert albums.left() == {}


def test_in_several_runs(albums: Albums, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has little time, and stages the next one."""
    monkeypatch.setattr(run_module, "RUN_SECONDS", 0.0)
    deletion = albums.delete(albums.fill())
    counts = []
    for _ in range(40):
        if not albums.mailbox.messages:
            break
        albums.mailbox.deliver(albums.mailbox.messages.pop(0).key)
        counts.append(albums.found(deletion).deleted)
        assert len(jobs()) <= 1
    assert counts == sorted(counts)
    assert len(set(counts)) > 5
    assert albums.left() == {}


def test_what_is_added_meanwhile_goes_too(albums: Albums, monkeypatch: pytest.MonkeyPatch) -> None:
    key = albums.fill()
    albums.delete(key)
    original = Run._end_batch
    added = [True]

    def add_once(self: Run) -> None:
        if added.pop() if added else False:
            Track(id="late", parent=key).put()
            Picture(fan="ann", of=key, file="late").put()
        original(self)

    monkeypatch.setattr(Run, "_end_batch", add_once)
    albums.run_jobs()
    assert albums.left() == {}


@EACH_MODE
@pytest.mark.parametrize("looks_again", [True, False])
def test_what_is_added_below_one_that_is_about_to_go(
    albums: Albums, monkeypatch: pytest.MonkeyPatch, looks_again: bool
) -> None:
    """Another request adds to a picture whose children have been read: no pass would find it once
    that one is gone. The control: without the queries of the transaction."""
    if not looks_again:
        monkeypatch.setattr(Run, "_with_additions", nothing_added)
    albums.delete(albums.fill(tracks=1))
    original = Run._delete
    added: list[Any] = []

    def add_once(self: Run, batch: Any) -> Any:
        going = [each.key for each in batch if each.key.kind() == "Picture"]
        if going and not added:
            added.append(albums.picture("ann", going[0], "late"))
            added.append(Track(id="late", parent=going[0]).put())
        return original(self, batch)

    monkeypatch.setattr(Run, "_delete", add_once)
    with allow_unlocked("it is put by another request"):
        albums.run_jobs(times=2)
    assert len(added) == 2
    assert list(unfinished()) == []
    late = {"Track": 1, "Picture": 1, "Remark": 1, "files": 1}
    assert albums.left() == ({} if looks_again else late)


# --- interactive requests ---------------------------------------------------------------------


@pytest.mark.parametrize("yields", [True, False])
def test_an_interactive_request_waits_for_one_batch(
    albums: Albums, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch, yields: bool
) -> None:
    """It comes during the first batch. The control: without the checkpoint it waits for all."""
    if not yields:
        monkeypatch.setattr(Run, "_yield", lambda self: None)
    service = userlock.LockService(MemoryStore())
    userlock.configure(service=service)
    albums.delete(albums.fill(tracks=5))
    batches = 0
    before: list[int] = []
    end = Run._end_batch

    def request() -> None:
        with ndb_client.context(), userlock.scope(service), userlock.global_lock("ann"):
            before.append(batches)

    thread = threading.Thread(target=request)

    def count(self: Run) -> None:
        nonlocal batches
        batches += 1
        if batches == 1:
            thread.start()
            wait_until(lambda: bool(service.waiters("ann")))
        end(self)

    monkeypatch.setattr(Run, "_end_batch", count)
    albums.run_jobs()
    thread.join(30)
    assert batches > 5
    assert before == [1 if yields else batches]
    assert albums.left() == {}


# --- one run -----------------------------------------------------------------------------------


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
