"""A delete builds on what was read, also if the object that was read is in no cache any more."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import DELETES, PUTS, Elsewhere, change, forget_reads, stored
from tests.contract.ndb.models import Learner, VideoLog
from tests.contract.ndb.servers import Wire
from userlock.constraints import Unique
from userlock.ndb import provenance
from userlock.ndb.provenance import Ledger
from userlock.stores import MemoryStore
from userlock.testing import allow_unlocked
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("quick_retries")


class Scene(NamedTuple):
    key: Any
    store: MemoryStore
    elsewhere: Elsewhere
    datastore: Emulator

    def rival(self) -> None:
        """Let the lock fail, and have another request write under it."""
        self.store.evict("ann")
        self.elsewhere(lambda: change(self.key, 100))

    def failing_get(self) -> None:
        self.datastore.faults.unavailable(None, rpc="Lookup")
        with pytest.raises(google_errors.RetryError):
            self.key.get()
        self.datastore.faults.clear()


@pytest.fixture
def scene(key: Any, store: MemoryStore, elsewhere: Elsewhere, datastore: Emulator) -> Scene:
    return Scene(key, store, elsewhere, datastore)


def a_failed_creation(scene: Scene) -> None:
    scene.key.get()
    with pytest.raises(userlock.EntityExistsError):
        Learner(key=scene.key).put()


def a_failed_rename(scene: Scene) -> None:
    scene.key.get()
    moved = Learner(id="bob")
    moved.put()
    moved.key = scene.key
    with pytest.raises(userlock.EntityExistsError):
        moved.put()


def a_creation_by_a_faster_request(scene: Scene) -> None:
    scene.key.delete()
    ndb.get_context().clear_cache()

    class Faster(Wire):
        created = False

        def sent(self, name: str, request: Any) -> Any:
            if name == "begin_transaction" and not self.created:  # after ndb's look-up
                self.created = True
                scene.store.evict("ann")
                scene.elsewhere(create)
            return super().sent(name, request)

    def create() -> None:
        with userlock.global_lock("ann"):
            Learner(key=scene.key).put()

    Faster(ndb.get_context().client)
    assert Learner.get_or_insert("ann", points=5).points == 0


def a_rollback(scene: Scene) -> None:
    def change_and_roll_back() -> None:
        learner = scene.key.get()
        learner.points += 1
        learner.put()
        raise ndb.Rollback

    with pytest.raises(ndb.Rollback):
        ndb.transaction(change_and_roll_back)


def an_error_after_a_query(scene: Scene) -> None:
    def read_and_fail() -> None:
        assert Learner.query().fetch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ndb.transaction(read_and_fail)


def a_failing_get(scene: Scene) -> None:
    """It distrusts the cache, as another object was put past it."""
    scene.key.get()
    other = scene.key.get(use_cache=False)
    for more in (1, -1):
        other.points += more
        other.put(use_cache=False)
    scene.failing_get()


def a_rename_that_is_rolled_back(scene: Scene) -> None:
    """Of an object that is in no cache, as in each attempt of a transaction."""
    learner = scene.key.get(use_cache=False)

    def rename() -> None:
        moved = copy.deepcopy(learner)
        moved.key = ndb.Key(Learner, "bob")
        moved.put()
        raise ndb.Rollback

    with pytest.raises(ndb.Rollback):
        ndb.transaction(rename)


def a_rename(scene: Scene) -> None:
    moved = scene.key.get(use_cache=False)
    moved.key = ndb.Key(Learner, "bob")
    moved.put()


LOSSES = pytest.mark.parametrize(
    "lose",
    [
        a_failed_creation,
        a_failed_rename,
        a_creation_by_a_faster_request,
        a_rollback,
        an_error_after_a_query,
        a_failing_get,
        a_rename,
        a_rename_that_is_rolled_back,
    ],
    ids=lambda each: each.__name__,
)


@LOSSES
def test_it_is_refused(scene: Scene, lose: Callable[[Scene], None]) -> None:
    with userlock.global_locks(["ann", "bob"]):
        lose(scene)
        scene.rival()
        for delete in (scene.key.delete, lambda: ndb.transaction(scene.key.delete)):
            with pytest.raises(userlock.StaleWriteError):
                delete()
        assert stored(scene.key) == (100, None)
        scene.key.get()
        scene.key.delete()
    assert stored(scene.key) is None


@pytest.mark.parametrize("refused", [PUTS["put_async"], DELETES["delete"]], ids=["put", "delete"])
def test_after_a_refused_write(scene: Scene, refused: Callable[[Any], object]) -> None:
    """It builds on the same read, until there is another."""
    with userlock.global_lock("ann"):
        learner = scene.key.get()
        scene.rival()
        for write in (refused, DELETES["delete"]):
            with pytest.raises(userlock.StaleWriteError):
                write(learner)
        assert stored(scene.key) == (100, None)
        scene.key.get()
        scene.key.delete()
    assert stored(scene.key) is None


def test_without_the_stamp_an_update_is_lost(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(Ledger, "last", lambda *_: None)
    with userlock.global_locks(["ann", "bob"]):
        a_rollback(scene)
        scene.rival()
        scene.key.delete()
    assert stored(scene.key) is None


def read_and_clear(scene: Scene) -> None:
    scene.key.get()
    ndb.get_context().clear_cache()


def read_past_the_cache(scene: Scene) -> None:
    scene.key.get(use_cache=False)


def query_past_the_cache(scene: Scene) -> None:
    assert Learner.query().fetch(use_cache=False)


@pytest.mark.parametrize("read", [read_and_clear, read_past_the_cache, query_past_the_cache])
@pytest.mark.parametrize("before", [False, True], ids=["under the lock", "before the lock"])
def test_whatever_cache_and_lock_it_was_read_with(
    scene: Scene, read: Callable[[Scene], None], before: bool
) -> None:
    if before:
        read(scene)
        scene.elsewhere(lambda: change(scene.key, 100))
    with userlock.global_lock("ann"):
        if not before:
            read(scene)
            scene.rival()
        with pytest.raises(userlock.StaleWriteError):
            scene.key.delete()
    assert stored(scene.key) == (100, None)


def read_no_entity(scene: Scene) -> None:
    forget_reads()
    assert Learner.query().fetch(keys_only=True)


def read_one_too_many(scene: Scene) -> None:
    scene.key.get()
    Learner(id="bob").put()


@pytest.mark.parametrize("read", [read_no_entity, read_one_too_many])
def test_without_an_entry_only_the_lock_protects_it(
    scene: Scene, read: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "MOST_SEEN", 1)
    with userlock.global_locks(["ann", "bob"]):
        read(scene)
        scene.rival()
        scene.key.delete()
    assert stored(scene.key) is None


# --- contexts, tenures, other locks ---------------------------------------------------------


def moved_pickle(scene: Scene) -> None:
    """A copy without the locks is put under another key."""
    moved = pickle.loads(pickle.dumps(scene.key.get()))  # noqa: S301 (its own)
    moved.key = ndb.Key(Learner, "bob")
    moved.put()


@pytest.mark.parametrize("enforcement", ["raise", "log"])
def test_a_later_stamp_without_the_lock_does_not_win(scene: Scene, enforcement: str) -> None:
    userlock.configure(enforcement=enforcement)
    with userlock.global_locks(["ann", "bob"]):
        moved_pickle(scene)
        scene.rival()
        with pytest.raises(userlock.StaleWriteError):
            scene.key.delete()
    assert stored(scene.key) == (100, None)


@pytest.mark.parametrize("read_under", [None, "ann"])
def test_under_the_lock_of_another(
    context: Any, elsewhere: Elsewhere, read_under: str | None
) -> None:
    """Its key does not tell whose lock guards it, so any will do. It builds on the read as well."""
    with userlock.global_lock("ann"):
        key = VideoLog(id="x", learner_id="ann").put()
    context.clear_cache()

    def rival() -> None:
        with userlock.global_lock("ann"):
            found = key.get()
            found.seconds = 100
            found.put()

    if read_under is None:
        key.get()
    else:
        with userlock.global_lock(read_under):
            key.get()
    elsewhere(rival)
    with userlock.global_lock("bob"), pytest.raises(userlock.StaleWriteError):
        key.delete()
    assert key.get(use_cache=False).seconds == 100


# --- no more than is needed -----------------------------------------------------------------


@pytest.mark.parametrize("use_cache", [False, True])
def test_its_own_later_put_counts(context: Any, use_cache: bool) -> None:
    with userlock.global_lock("ann"):
        key = VideoLog(id="x", learner_id="ann").put()
    context.clear_cache()
    VideoLog.query().fetch()
    with userlock.global_lock("ann"):
        found = key.get(use_cache=use_cache)
        found.seconds += 1
        found.put(use_cache=use_cache)
    with userlock.global_lock("ann"):
        key.delete()
    assert key.get(use_cache=False) is None


class Uncached(userlock.UserModel):
    """In no context cache."""

    _use_cache = False
    _lock_id_from_key = userlock.key_id
    _unique = (Unique("title", per="all"),)
    title = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedUncached"


def test_its_own_put_after_a_refusal_counts(context: Any) -> None:
    with allow_unlocked("it is about the delete"):
        Uncached(id="x", title="A").put()
        key = Uncached(id="y", title="B").put()
        found = key.get()
        found.title = "A"
        with pytest.raises(userlock.NotUnique):
            found.put()
        found.title = "C"
        found.put()
        key.delete()
    assert key.get() is None
