"""A root goes at once, and everything below it by a job: bottom-up, any number of times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb import polymodel

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.deletion.conftest import (
    Album,
    Albums,
    Picture,
    Remark,
    Track,
    album_key,
    jobs,
    rows,
)
from userlock.constraints.claims import ClaimRow
from userlock.deletion import Tree, delete_tree, deletions_of, find_deletion, unfinished
from userlock.deletion import run as run_module
from userlock.deletion.run import Run
from userlock_emulator import Emulator


def test_the_root_goes_at_once_and_the_rest_by_a_job(albums: Albums) -> None:
    key = albums.fill()
    before = albums.left()
    deletion = albums.delete(key)
    assert albums.left() == {name: n for name, n in before.items() if name != "Album"}
    assert ClaimRow.query(namespace="").count() == 0
    assert albums.stamped == ["ann"]
    assert (deletion.owner, deletion.root, deletion.ended_at) == ("ann", key, None)
    assert [each.id for each in unfinished()] == [deletion.id]
    albums.run_jobs()
    assert albums.left() == {}
    done = albums.found(deletion)
    assert done.ended_at is not None
    assert done.deleted == sum(before.values()) - before["files"] - 1
    assert list(unfinished()) == []
    assert deletions_of("ann") == [done]
    assert jobs() == []


def test_other_trees_are_left_alone(albums: Albums) -> None:
    one = albums.fill()
    albums.fill("bob")
    albums.fill("ann", "two")
    before = albums.left()
    albums.delete(one)
    albums.run_jobs()
    after = albums.left()
    assert {name: before[name] // 3 * 2 for name in before} == after


@EACH_MODE
@pytest.mark.parametrize("batch", [4, 100])
def test_in_each_mode(albums: Albums) -> None:
    """Pictures are entity groups of their own: more than a transaction or a look-up may have."""
    key = albums.fill(tracks=9)
    albums.delete(key)
    albums.run_jobs(times=3)
    assert albums.left() == {}
    assert all(row.ended_at for row in rows())


WAYS: dict[str, Callable[[Albums, Any], object]] = {
    "the entity": lambda albums, key: delete_tree(key.get()),
    "twice": lambda albums, key: (delete_tree(key), delete_tree(key)),
    "a root that is gone": lambda albums, key: (key.delete(), delete_tree(key)),
    "in a transaction": lambda albums, key: ndb.transaction(lambda: delete_tree(key)),
    "the owner is given": lambda albums, key: delete_tree(key, owner="ann"),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_delete_one(albums: Albums, way: str) -> None:
    key = albums.fill()
    with userlock.global_lock("ann"):
        WAYS[way](albums, key)
    albums.run_jobs()
    assert albums.left() == {}
    assert all(row.ended_at for row in rows())


@pytest.mark.parametrize("below", [(), (Track, 1)], ids=["of the root", "of a track"])
@pytest.mark.parametrize("protected", [True, False], ids=["", "the control"])
def test_another_owner_s_entities_that_name_one_stay(
    albums: Albums, monkeypatch: pytest.MonkeyPatch, protected: bool, below: tuple[Any, ...]
) -> None:
    """The one that they name goes all the same: else the deletion would never end."""
    if not protected:
        monkeypatch.setattr(Run, "_is_foreign", lambda *_: False)
    key = albums.fill()
    named = ndb.Key(*below, parent=key) if below else key
    with userlock.global_lock("bob"):
        for number in range(6):  # more than a batch
            albums.picture("bob", named, f"bob-s-{number}")
    albums.delete(key)
    albums.run_jobs()
    assert albums.left() == ({"Picture": 6, "Remark": 6, "files": 6} if protected else {})
    assert all(row.ended_at for row in rows())


def create_again(key: Any) -> None:
    with userlock.global_lock("ann"):
        Album(key=key, title="again").put()
        Track(id="new", parent=key).put()


def test_a_new_root_under_the_same_key_stays(albums: Albums) -> None:
    key = albums.fill()
    deletion = albums.delete(key)
    create_again(key)
    before = albums.left()
    albums.run_jobs(times=2)
    assert albums.left() == before
    found = albums.found(deletion)
    assert (found.superseded, found.ended_at is None) == (True, False)
    albums.delete(key)
    albums.run_jobs(times=2)
    assert albums.left() == {}


def test_a_new_root_in_the_middle(albums: Albums, monkeypatch: pytest.MonkeyPatch) -> None:
    key = albums.fill()
    albums.delete(key)
    end = Run._end_batch
    calls = [0]

    def create(self: Run) -> None:
        calls[0] += 1
        if calls[0] == 2:
            create_again(key)
        end(self)

    monkeypatch.setattr(Run, "_end_batch", create)
    albums.run_jobs()
    assert calls[0] == 2
    assert albums.left()["Album"] == 1
    assert ndb.Key(Track, "new", parent=key).get() is not None
    assert [row.superseded for row in rows()] == [True]


@pytest.mark.parametrize("looks_again", [True, False])
def test_what_is_moved_away_stays(
    albums: Albums, monkeypatch: pytest.MonkeyPatch, looks_again: bool
) -> None:
    """Another request moves a picture, after it was found and before it is deleted. The control:
    without a second look."""
    if not looks_again:
        monkeypatch.setattr(Run, "_left", lambda *_: set())
    key = albums.fill()
    other = albums.fill("ann", "two")
    with userlock.global_lock("ann"):
        moving = albums.picture("ann", key, "moving")
    before = albums.left()
    delete = Run._delete

    def move_first(self: Run, batch: Any) -> Any:
        if any(step.key == moving for each in batch for step in each.way):
            picture = moving.get()
            picture.of = other
            picture.put()
        return delete(self, batch)

    albums.delete(key)
    monkeypatch.setattr(Run, "_delete", move_first)
    albums.run_jobs(times=2)
    assert (moving.get() is not None) == looks_again
    if looks_again:
        assert (albums.files / "moving").exists()
        assert moving.get().of == other
        assert Remark.query(Remark.picture == moving).count() == 1
        assert albums.left()["Picture"] == (before["Picture"] - 1) // 2 + 1
        assert list(unfinished()) == []


# --- nothing is destroyed if it could not be queued -------------------------------------------


def of_a_refused_job(albums: Albums, key: Any, faults: Any, patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise userlock.JobArgumentsRefused("no", job="x")

    patch.setattr(albums.tree._job, "stage", refuse)
    albums.delete(key)


def by_a_commit_that_fails(albums: Albums, key: Any, faults: Any, _: Any) -> None:
    with faults.unavailable(None, rpc="Commit"):
        albums.delete(key)


def rolled_back(albums: Albums, key: Any, *_: Any) -> None:
    def change() -> None:
        delete_tree(key)
        raise LookupError

    with userlock.global_lock("ann"):
        ndb.transaction(change)


def of_another_owner(albums: Albums, key: Any, *_: Any) -> None:
    with userlock.global_lock("ann"):
        delete_tree(key, owner="bob")


def without_a_lock(albums: Albums, key: Any, *_: Any) -> None:
    delete_tree(key)


@pytest.mark.parametrize(
    ("delete", "error"),
    [
        (of_a_refused_job, userlock.JobArgumentsRefused),
        (by_a_commit_that_fails, Exception),
        (rolled_back, LookupError),
        (of_another_owner, ValueError),
        (without_a_lock, userlock.DeletedWithoutLock),
    ],
)
def test_nothing_goes_if_it_is_not_queued(
    albums: Albums,
    datastore: Emulator,
    monkeypatch: pytest.MonkeyPatch,
    delete: Callable[..., None],
    error: type[Exception],
) -> None:
    key = albums.fill()
    before = albums.left()
    with pytest.raises(error):
        delete(albums, key, datastore.faults, monkeypatch)
    assert albums.left() == before
    assert rows() == jobs() == []


def test_the_control_queued_after_the_delete_the_rest_would_stay(albums: Albums) -> None:
    """Two commits, and a process that ends between them."""
    key = albums.fill()
    with userlock.global_lock("ann"):
        key.delete()  # and no job
    albums.run_jobs(times=3)
    assert "Picture" in albums.left()


# --- what cannot be deleted ------------------------------------------------------------------


def test_one_that_cannot_be_deleted_stays_and_holds_nobody_up(albums: Albums) -> None:
    key, other = albums.fill(), albums.fill("ann", "two")
    albums.fails = {"ann-one-1-deep"}
    deletion, second = albums.delete(key), albums.delete(other)
    albums.run_jobs()
    left = albums.left()
    assert (left["files"], left["Picture"]) == (1, 1)
    assert "Track" in left, "without its track nobody would find the picture"
    found = albums.found(deletion)
    assert (found.ended_at, "is busy" in found.error) == (None, True)
    assert [each.id for each in unfinished()] == [deletion.id] != [second.id]
    (job,) = jobs()
    assert "DeletionIncomplete" in job.last_error
    ran: list[str] = []

    @albums.outbox.job(name="other")
    def work(owner: str) -> None:
        ran.append(owner)

    work.stage_now("ann")
    albums.run_jobs()
    assert ran == ["ann"]
    albums.fails = set()
    albums.run_jobs(times=2)
    assert albums.left() == {}
    found = albums.found(deletion)
    assert (found.error, found.ended_at is None) == ("", False)


@pytest.mark.parametrize("kind", ["tasklet", "coroutine"])
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_an_asset_that_is_not_removed_keeps_its_entity(albums: Albums, kind: str) -> None:
    @ndb.tasklet
    def tasklet(picture: Any) -> Any:
        yield picture.key.get_async()
        raise OSError("the file server does not answer")

    async def coroutine(picture: Any) -> None: ...

    assets: Any = albums.tree._plan.assets
    assets[Picture] = tasklet if kind == "tasklet" else lambda picture: coroutine(picture)
    pictures = albums.fill() and albums.left()["Picture"]
    deletion = albums.delete(album_key("ann", "one"))
    albums.run_jobs()
    assert albums.left()["Picture"] == pictures
    assert albums.found(deletion).ended_at is None


def test_one_whose_hook_refuses(albums: Albums, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cls: Any, key: Any) -> None:
        if key.id() == 1:
            raise ValueError("not this one")

    monkeypatch.setattr(Track, "_pre_delete_hook", classmethod(refuse))
    deletion = albums.delete(albums.fill())
    albums.run_jobs()
    assert "not this one" in albums.found(deletion).error
    assert albums.left() == {"Track": 1}


def test_many_that_cannot_be_deleted(albums: Albums, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_MOST_KEPT", 2)
    key = albums.fill()
    albums.fails = {path.name for path in albums.files.iterdir()}
    albums.delete(key)
    albums.run_jobs()
    (job,) = jobs()
    assert "have to stay" in job.last_error


def test_rings(albums: Albums) -> None:
    """One that can be reached goes; one that nothing below the root names stays."""
    key = album_key()
    with userlock.global_lock("ann"):
        Album(key=key, title="x").put()
        track = Track(id="t", parent=key).put()
        for name, of in (
            *(("p", track), ("q", ndb.Key(Picture, "p"))),
            *(("a", ndb.Key(Picture, "b")), ("b", ndb.Key(Picture, "a"))),
            ("loop", ndb.Key(Picture, "loop")),
        ):
            Picture(id=name, fan="ann", of=of, file=name).put()
    albums.delete(key)
    albums.run_jobs(times=2)
    assert {each.key.id() for each in Picture.query()} == {"a", "b", "loop"}
    assert list(unfinished()) == []


def test_a_note_stays_in_the_log(albums: Albums) -> None:
    key = albums.fill()
    with userlock.global_lock("ann"):
        for note in ("x" * 1001, None):
            with pytest.raises(ValueError, match="note is a text"):
                delete_tree(key, note=note)  # type: ignore[arg-type]
        delete_tree(key, note="“one”, by ann")
    albums.run_jobs()
    (found,) = deletions_of("ann")
    assert found.note == "“one”, by ann"
    assert found.ended_at is not None


def test_a_row_that_may_have_been_removed_counts_as_removed(
    albums: Albums, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = albums.tree._plan
    monkeypatch.setattr(albums.tree, "_plan", plan._replace(keep_days=1.0))
    deletion = albums.delete(albums.fill())
    assert find_deletion("ann", deletion.id) == deletion
    albums.run_jobs()
    (row,) = rows()
    assert row.expire_at is not None  # by the tests' clock, which is years behind
    assert find_deletion("ann", deletion.id) is None
    assert deletions_of("ann") == []
    assert find_deletion("ann", "x" * 2000) is None


def test_kinds_without_a_model(albums: Albums, ndb_client: ndb.Client) -> None:
    key = albums.fill()
    unknown = ndb.Key("TestedNowhere", 1, parent=key)

    class Nowhere(ndb.Model):
        @classmethod
        def _get_kind(cls) -> str:
            return "TestedNowhere"

    Nowhere(key=unknown).put()
    del ndb.Model._kind_map["TestedNowhere"]
    albums.delete(key)
    albums.run_jobs()
    assert albums.left() == {}
    assert len(ndb.Query(ancestor=key).fetch(keys_only=True)) == 0


def test_options_of_no_use(albums: Albums) -> None:
    async def later(of: Any) -> None: ...

    wrong: list[tuple[dict[str, Any], str]] = [
        *(({"children": {Album: {Track: name}}}, "KeyProperty") for name in ("title", "nothing")),
        ({"name": None}, "two jobs"),
        ({"on_delete": "stamp"}, ""),
        ({"on_delete": later}, "plain function"),
        ({"assets": {Picture: later}}, "plain function"),
        ({"assets": {Album: print}}, "the root, Album, which goes before the job"),
        ({"name": 3}, ""),
        ({"assets": {Picture: "file"}}, ""),
        ({"assets": [Picture]}, ""),
        ({"children": {Album: [Picture]}}, ""),
        ({"children": {"Album": {Picture: "of"}}}, ""),
        ({"children": {Album: {Picture: 3}}}, ""),
        ({"outbox": None}, "outbox"),
    ]
    for options, text in wrong:
        given = {"outbox": albums.outbox, "name": "other", **options}
        if given["name"] is None:
            del given["name"]
        with pytest.raises(userlock.ConfigurationError, match=text or "."):
            Tree(Album, given.pop("outbox"), **given)


def test_roots_of_no_use(albums: Albums) -> None:
    roots: list[Any] = [None, "one", [album_key]]
    for root in roots:
        with pytest.raises(TypeError, match="delete_tree takes"):
            delete_tree(root)
        with pytest.raises(TypeError, match="id"):
            find_deletion("ann", root if root != "one" else "")
    with pytest.raises(userlock.ConfigurationError, match="no tree"):
        delete_tree(ndb.Key("TestedNothing", 1))
    with pytest.raises(ValueError, match="no stored Album"):
        albums.tree.delete(ndb.Key(Track, 1), "ann")


class Shared(userlock.UserModel):
    """A root whose property tells its owner."""

    _lock_id = "fan"
    fan = ndb.StringProperty()


def test_an_object_that_tells_another_owner_than_the_stored_root(albums: Albums) -> None:
    tree = Tree(Shared, albums.outbox, clock=albums.clock)
    with userlock.global_locks(["ann", "bob"]):
        key = Shared(id="s", fan="ann").put()
        with pytest.raises(ValueError, match="another owner"):
            delete_tree(Shared(id="s", fan="bob"))
        assert key.get() is not None
        assert tree.delete(key.get()).owner == "ann"


class Scan(userlock.UserModel, polymodel.PolyModel):
    """Of one kind with its subclasses."""

    _lock_id_from_key = userlock.root_id


class Photo(Scan):
    pass


class Film(Scan):
    pass


class Thumb(userlock.UserModel):
    """Names a photo or a film."""

    _lock_id_from_key = userlock.root_id
    of = ndb.KeyProperty()
    by = ndb.KeyProperty()


def test_classes_of_one_kind(albums: Albums) -> None:
    removed: list[str] = []
    tree = Tree(
        Shared,
        albums.outbox,
        children={Photo: {Thumb: "of"}, Film: {Thumb: "by"}},
        assets={
            Film: lambda film: removed.append(f"film {film.key.id()}"),
            Scan: lambda scan: removed.append(f"scan {scan.key.id()}"),
        },
        clock=albums.clock,
    )
    with userlock.global_lock("ann"):
        key = Shared(id="s", fan="ann").put()
        with userlock.global_lock("s"):
            photo = Photo(id="p", parent=key).put()
            film = Film(id="f", parent=key).put()
            Thumb(parent=ndb.Key("Fan", "ann"), of=photo).put()
            Thumb(parent=ndb.Key("Fan", "ann"), by=film).put()
            tree.delete(key.get())
    albums.run_jobs()
    assert Thumb.query().count() == 0
    with pytest.raises(userlock.ConfigurationError, match="another model"):
        _ = Tree(Photo, albums.outbox), Tree(Film, albums.outbox)


def test_an_owner_that_the_root_does_not_tell(albums: Albums) -> None:
    tree = Tree(Remark, albums.outbox)
    key = ndb.transaction(lambda: Remark().put())
    with pytest.raises(userlock.ConfigurationError, match="owner="):
        delete_tree(key)
    delete_tree(key, owner="ann")
    albums.run_jobs()
    assert key.get() is None
    assert tree.name == "Remark"


def test_datastore_does_not_answer(albums: Albums, datastore: Emulator) -> None:
    albums.delete(albums.fill())
    datastore.faults.unavailable(None, rpc="RunQuery")
    albums.run_jobs()
    datastore.faults.clear()
    (job,) = jobs()
    assert job.last_error
    albums.run_jobs(times=3)
    assert albums.left() == {}
