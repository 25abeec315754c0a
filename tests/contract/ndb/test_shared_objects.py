"""An entity object that is put while a put of it is under way: each put is fenced by itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, Overtake
from userlock.ndb import commits
from userlock.ndb.transactions import finish_writes
from userlock.stores import MemoryStore
from userlock.testing import allow_unlocked


class Hooked(userlock.UserModel):
    """Its next put calls a function of the test, once, before it goes on."""

    _lock_id_from_key = userlock.root_id
    before_put: ClassVar[list[Callable[[Any], object]]] = []
    points = ndb.IntegerProperty(default=0)

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedHooked"

    def _pre_put_hook(self) -> None:
        if self.before_put:
            self.before_put.pop()(self)


@pytest.fixture
def key(context: Any) -> Iterator[Any]:
    key = ndb.Key(Hooked, "ann")
    with userlock.global_lock("ann"):
        Hooked(key=key).put()
    context.clear_cache()
    yield key
    Hooked.before_put.clear()


def stored(key: Any) -> int:
    points: int = key.get(use_cache=False).points
    return points


def rival(key: Any) -> Callable[[], None]:
    """Return another request's change: 1,000 points, under the lock as far as it knows."""

    def run() -> None:
        with userlock.global_lock("ann"):
            other = key.get()
            other.points += 1_000
            other.put()

    return run


def put_again(entity: Any) -> None:
    entity.put()


def begin_again(entity: Any) -> None:
    entity.put_async()


def save_child(entity: Any) -> None:
    """Save the child, which saves its parent."""
    child = Hooked(parent=entity.key, id="child")
    Hooked.before_put.append(lambda _: entity.put())
    child.put()


def put_by_a_tasklet(entity: Any) -> None:
    """Put the same object in a tasklet while the hook looks something up."""

    @ndb.tasklet
    def other() -> Any:
        yield ndb.Key(Hooked, "nobody").get_async()
        yield entity.put_async()

    other()
    ndb.Key(Hooked, "somebody").get()


WITHIN = [put_again, begin_again, save_child, put_by_a_tasklet]


def put_what_is_stale(
    key: Any, within: Callable[[Any], None], store: MemoryStore, elsewhere: Elsewhere
) -> None:
    """Put an object that somebody else has overtaken, with another put within its hook."""
    with userlock.global_lock("ann"):
        entity = key.get()
        entity.points += 5
        store.evict("ann")
        elsewhere(rival(key))
        Hooked.before_put.append(within)
        entity.put()


@pytest.mark.parametrize("within", WITHIN)
class TestPutWithinItsPut:
    def test_nothing_stale_lands(
        self, key: Any, within: Callable[[Any], None], overtake: Overtake
    ) -> None:
        def hook(entity: Any) -> None:
            within(entity)
            # Between the inner put and the outer one.
            overtake(rival(key))

        with contextlib.suppress(userlock.StaleWriteError), userlock.global_lock("ann"):
            entity = key.get()
            entity.points += 5
            Hooked.before_put.append(hook)
            entity.put()
        with contextlib.suppress(userlock.StaleWriteError):
            finish_writes()  # the inner put was refused as well, and its future was dropped
        assert stored(key) >= 1_000

    def test_a_write_that_is_not_stale_lands(self, key: Any, within: Callable[[Any], None]) -> None:
        with userlock.global_lock("ann"):
            entity = key.get()
            entity.points += 5
            Hooked.before_put.append(within)
            entity.put()
            entity.points += 1
            entity.put()
        assert stored(key) == 6

    def test_without_the_lock_it_is_flagged(self, key: Any, within: Callable[[Any], None]) -> None:
        entity = key.get()
        entity.points += 5

        def hook(entity: Any) -> None:
            with userlock.global_lock("ann"):
                fresh = key.get(use_cache=False)
                assert fresh.points == 0
            with allow_unlocked("the inner one is not the question"):
                within(entity)

        Hooked.before_put.append(hook)
        with pytest.raises(userlock.PutWithoutLock):
            entity.put()
        ndb.get_context().flush()
        with contextlib.suppress(userlock.PutWithoutLock):  # of a tasklet that nobody awaits
            finish_writes()

    def test_without_the_fence_an_update_is_lost(
        self,
        key: Any,
        within: Callable[[Any], None],
        store: MemoryStore,
        elsewhere: Elsewhere,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(commits, "build_on", lambda *_: None)
        put_what_is_stale(key, within, store, elsewhere)
        assert stored(key) < 1_000


def in_thread(client: ndb.Client, action: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        with client.context(), contextlib.suppress(userlock.UserLockError):
            action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("checked", [True, False])
class TestPutByTwoThreads:
    def put_together(
        self, key: Any, client: ndb.Client, elsewhere: Elsewhere, *, checked: bool
    ) -> list[Exception]:
        """Put the object in two threads: the first put waits in its hook meanwhile."""
        userlock.configure(enforcement="raise" if checked else "off")
        entity = key.get()
        entity.points += 5
        in_hook, go_on = threading.Event(), threading.Event()
        errors: list[Exception] = []

        def wait_in_hook(_: Any) -> None:
            in_hook.set()
            go_on.wait(10)

        def put() -> None:
            try:
                entity.put()
            except userlock.UserLockError as error:
                errors.append(error)

        Hooked.before_put.append(wait_in_hook)
        first = in_thread(client, put)
        assert in_hook.wait(10)
        in_thread(client, put).join()
        elsewhere(rival(key))
        go_on.set()
        first.join()
        return errors

    def test_each_is_fenced_by_itself(
        self, key: Any, ndb_client: ndb.Client, elsewhere: Elsewhere, checked: bool
    ) -> None:
        errors = self.put_together(key, ndb_client, elsewhere, checked=checked)
        if checked:
            assert [type(error) for error in errors] == [userlock.PutWithoutLock] * 2
            assert stored(key) == 1_000
        else:
            assert [type(error) for error in errors] == [userlock.StaleWriteError]
            assert stored(key) == 1_005

    def test_without_the_fence_an_update_is_lost(
        self,
        key: Any,
        ndb_client: ndb.Client,
        elsewhere: Elsewhere,
        checked: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(commits, "build_on", lambda *_: None)
        self.put_together(key, ndb_client, elsewhere, checked=False)
        assert stored(key) == 5
