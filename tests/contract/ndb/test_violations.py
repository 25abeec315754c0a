"""Each violation is raised at the put, before anything is sent, and names both call sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, stored_points
from tests.contract.ndb.models import Learner, VideoLog
from userlock.events import Event, Violation
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def ann(context: Any) -> Learner:
    """Store a learner; return its key."""
    with userlock.global_lock("ann"):
        learner = Learner(id="ann", name="Ann")
        learner.put()
    context.clear_cache()
    return learner


def check_message(
    error: userlock.WriteViolation, *, read_in: str | None, put_in: str, lock_id: str = "ann"
) -> None:
    """Check that message and attributes name the key, the lock, and both call sites."""
    message = str(error)
    assert repr(error.key) in message
    assert f"lock id: {lock_id!r}" in message
    assert error.lock_id == lock_id
    if read_in is None:
        assert error.read_at is None
        assert "read at" not in message
    else:
        assert "test_violations.py" in str(error.read_at)
        assert read_in in str(error.read_at)
        assert f"read at: {error.read_at}" in message
    assert "test_violations.py" in str(error.put_at)
    assert put_in in str(error.put_at)
    assert f"put at: {error.put_at}" in message or f"deleted at: {error.put_at}" in message
    assert "To fix it: " in message


def read_ann() -> Learner:
    learner = Learner.get_by_id("ann")
    assert learner is not None
    return learner


def add_points_and_put(learner: Learner) -> None:
    learner.points += 5
    learner.put()


def without_the_lock() -> None:
    add_points_and_put(read_ann())


def read_before_the_lock() -> None:
    learner = read_ann()
    with userlock.global_lock("ann"):
        add_points_and_put(learner)


def after_the_release() -> None:
    with userlock.global_lock("ann"):
        learner = read_ann()
    add_points_and_put(learner)


def under_another_tenure() -> None:
    with userlock.global_lock("ann"):
        learner = read_ann()
    with userlock.global_lock("ann"):
        add_points_and_put(learner)


def in_another_scope() -> None:
    with userlock.global_lock("ann"), userlock.scope():
        add_points_and_put(read_ann())


def an_older_object() -> None:
    with userlock.global_lock("ann"):
        older = read_ann()
        ndb.get_context().clear_cache()
        newer = read_ann()
        newer.name = "Anna"
        newer.put()
        add_points_and_put(older)


@pytest.mark.usefixtures("ann")
class TestEachViolation:
    @pytest.mark.parametrize(
        ("put", "error"),
        [
            (without_the_lock, userlock.PutWithoutLock),
            (read_before_the_lock, userlock.ReadWithoutLock),
            (after_the_release, userlock.PutAfterRelease),
            (under_another_tenure, userlock.ReadUnderEarlierTenure),
            (in_another_scope, userlock.PutWithoutLock),
            (an_older_object, userlock.StaleObjectPut),
        ],
    )
    def test_of_an_entity_that_was_read(
        self, put: Callable[[], None], error: type[userlock.WriteViolation]
    ) -> None:
        with pytest.raises(error) as caught:
            put()
        check_message(caught.value, read_in="read_ann", put_in="add_points_and_put")
        says = "the newer object was put at" if put is an_older_object else ""
        assert says in str(caught.value)
        assert stored_points() == 0

    def test_lease_ran_out(self, clock: ManualClock) -> None:
        with userlock.global_lock("ann", lock_timeout=5):
            learner = read_ann()
            clock.advance(6)
            with pytest.raises(userlock.LeaseRanOut) as caught:
                add_points_and_put(learner)
            with pytest.raises(userlock.LeaseRanOut):
                add_points_and_put(Learner(id="ann"))
        check_message(caught.value, read_in="read_ann", put_in="add_points_and_put")
        assert "a lease of 5 s, taken 6 s ago" in str(caught.value)
        assert stored_points() == 0

    def test_delete_without_lock(self) -> None:
        with pytest.raises(userlock.DeletedWithoutLock) as caught:
            ndb.Key(Learner, "ann").delete()
        check_message(caught.value, read_in=None, put_in="test_delete_without_lock")
        assert stored_points() == 0


@pytest.mark.usefixtures("ann")
class TestAllowed:
    def test_a_cached_miss_is_looked_up_again(
        self, elsewhere: Callable[[Callable[[], None]], None]
    ) -> None:
        assert Learner.get_by_id("bob") is None

        def create() -> None:
            with userlock.global_lock("bob"):
                Learner(id="bob", points=3).put()

        elsewhere(create)
        with userlock.global_lock("bob"):
            assert Learner.get_by_id("bob").points == 3

    def test_an_entity_whose_id_will_name_its_lock_needs_none_yet(self) -> None:
        """No other request can know the id that Datastore is about to allocate."""
        key = Learner(name="somebody new").put()
        assert key.id()

    def test_a_key_that_does_not_tell_its_lock_is_deleted_under_any(self) -> None:
        with userlock.global_lock("ann"):
            key = VideoLog(learner_id="ann").put()
        with pytest.raises(userlock.DeletedWithoutLock):
            key.delete()
        with userlock.global_lock("ann"):
            key.delete()

    def test_an_entity_read_under_the_lock_tells_its_lock(self) -> None:
        with userlock.global_lock("bob"):
            key = VideoLog(learner_id="bob").put()
        ndb.get_context().clear_cache()
        with userlock.global_lock("ann"):
            key.get()
            with pytest.raises(userlock.DeletedWithoutLock) as caught:
                key.delete()
            assert caught.value.lock_id == "bob"
            with userlock.global_lock("bob"):
                key.delete()
        assert key.get(use_cache=False) is None

    def test_an_entity_read_before_may_have_another_owner_now(self, elsewhere: Elsewhere) -> None:
        def give_to_ann() -> None:
            with userlock.global_locks(["ann", "bob"]):
                log = key.get()
                log.learner_id = "ann"
                log.put()

        with userlock.global_lock("bob"):
            key = VideoLog(learner_id="bob").put()
        elsewhere(give_to_ann)
        with userlock.global_lock("ann"):
            with pytest.raises(userlock.StaleWriteError):
                key.delete()
            key.get()
            key.delete()
        assert key.get(use_cache=False) is None


@pytest.mark.usefixtures("ann")
class TestModes:
    def test_an_unknown_mode_is_refused(self) -> None:
        with pytest.raises(ValueError, match="'raise', 'log', 'off', not 'warn'"):
            userlock.configure(enforcement="warn")

    def test_places_can_be_left_out(self) -> None:
        userlock.configure(capture_places=False)
        learner = read_ann()
        with pytest.raises(userlock.PutWithoutLock) as caught:
            add_points_and_put(learner)
        assert caught.value.read_at is None
        assert "add_points_and_put" in str(caught.value)

    def test_a_put_in_the_hook_of_its_read_names_the_read(
        self, ann: Learner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def put_it(_: Any, future: Any) -> None:
            add_points_and_put(future.result())

        monkeypatch.setattr(Learner, "_post_get_hook", put_it)
        with pytest.raises(userlock.PutWithoutLock) as caught:
            read_ann()
        check_message(caught.value, read_in="read_ann", put_in="add_points_and_put")

    def test_a_raised_violation_is_an_event_too(self, events: list[Event]) -> None:
        with pytest.raises(userlock.PutWithoutLock) as caught:
            add_points_and_put(read_ann())
        (violation,) = [event for event in events if isinstance(event, Violation)]
        assert violation.error is caught.value
        assert violation.enforced
