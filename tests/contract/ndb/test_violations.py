"""Each violation is raised at the put, before anything is sent, and names both call sites."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere
from tests.contract.ndb.models import Learner, Note, Plain, VideoLog
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


def stored_points() -> int:
    learner = Learner.get_by_id("ann", use_cache=False)
    points: int = learner.points
    return points


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


@pytest.mark.usefixtures("ann")
class TestEachViolation:
    def test_read_and_put_without_lock(self) -> None:
        learner = read_ann()
        with pytest.raises(userlock.PutWithoutLock) as caught:
            add_points_and_put(learner)
        check_message(caught.value, read_in="read_ann", put_in="add_points_and_put")
        assert stored_points() == 0

    def test_read_without_lock_put_under_it(self) -> None:
        learner = read_ann()
        with userlock.global_lock("ann"), pytest.raises(userlock.ReadWithoutLock) as caught:
            add_points_and_put(learner)
        check_message(caught.value, read_in="read_ann", put_in="add_points_and_put")
        assert stored_points() == 0

    def test_put_after_release(self) -> None:
        with userlock.global_lock("ann"):
            learner = read_ann()
        with pytest.raises(userlock.PutAfterRelease) as caught:
            add_points_and_put(learner)
        check_message(caught.value, read_in="read_ann", put_in="add_points_and_put")
        assert stored_points() == 0

    def test_read_under_an_earlier_tenure(self) -> None:
        with userlock.global_lock("ann"):
            learner = read_ann()
        with userlock.global_lock("ann"), pytest.raises(userlock.ReadUnderEarlierTenure) as caught:
            add_points_and_put(learner)
        check_message(caught.value, read_in="read_ann", put_in="add_points_and_put")
        assert stored_points() == 0

    def test_lease_ran_out(self, clock: ManualClock) -> None:
        with userlock.global_lock("ann", lock_timeout=5):
            learner = read_ann()
            clock.advance(6)
            with pytest.raises(userlock.LeaseRanOut) as caught:
                add_points_and_put(learner)
        check_message(caught.value, read_in="read_ann", put_in="add_points_and_put")
        assert "a lease of 5 s, taken 6 s ago" in str(caught.value)
        assert stored_points() == 0

    def test_stale_object(self, context: Any) -> None:
        with userlock.global_lock("ann"):
            older = read_ann()
            context.clear_cache()
            newer = read_ann()
            add_points_and_put(newer)
            older.name = "Anna"
            with pytest.raises(userlock.StaleObjectPut) as caught:
                add_points_and_put(older)
        check_message(caught.value, read_in="read_ann", put_in="add_points_and_put")
        assert "the newer object was put at" in str(caught.value)
        assert stored_points() == 5

    def test_new_entity_without_lock(self) -> None:
        with pytest.raises(userlock.CreatedWithoutLock) as caught:
            add_points_and_put(Learner(id="bob"))
        check_message(caught.value, read_in=None, put_in="add_points_and_put", lock_id="bob")
        assert Learner.get_by_id("bob") is None

    def test_new_entity_under_a_lease_that_ran_out(self, clock: ManualClock) -> None:
        with userlock.global_lock("bob", lock_timeout=5):
            clock.advance(5)
            with pytest.raises(userlock.LeaseRanOut):
                add_points_and_put(Learner(id="bob"))

    def test_delete_without_lock(self) -> None:
        with pytest.raises(userlock.DeletedWithoutLock) as caught:
            ndb.Key(Learner, "ann").delete()
        check_message(caught.value, read_in=None, put_in="test_delete_without_lock")
        assert stored_points() == 0

    def test_another_users_lock_is_no_lock(self) -> None:
        with userlock.global_lock("bob"):
            learner = read_ann()
            with pytest.raises(userlock.PutWithoutLock):
                add_points_and_put(learner)

    def test_a_lock_in_another_scope_is_no_lock(self) -> None:
        with userlock.global_lock("ann"), userlock.scope():
            learner = read_ann()
            with pytest.raises(userlock.PutWithoutLock):
                add_points_and_put(learner)


@pytest.mark.usefixtures("ann")
class TestAllowed:
    def test_get_modify_put_under_the_lock(self) -> None:
        with userlock.global_lock("ann"):
            add_points_and_put(read_ann())
        assert stored_points() == 5

    def test_reading_is_free(self) -> None:
        assert read_ann().points == 0
        assert Learner.query().fetch() != []

    def test_the_same_object_may_be_put_again_and_again(self) -> None:
        with userlock.global_lock("ann"):
            learner = read_ann()
            for _ in range(3):
                add_points_and_put(learner)
        assert stored_points() == 15

    def test_a_new_object_may_be_put_again(self) -> None:
        with userlock.global_lock("bob"):
            learner = Learner(id="bob")
            learner.put()
            add_points_and_put(learner)
        assert Learner.get_by_id("bob", use_cache=False).points == 5

    def test_an_object_read_again_after_a_put_may_be_put(self, context: Any) -> None:
        with userlock.global_lock("ann"):
            add_points_and_put(read_ann())
            context.clear_cache()
            add_points_and_put(read_ann())
        assert stored_points() == 10

    def test_a_nested_block_belongs_to_the_same_tenure(self) -> None:
        with userlock.global_lock("ann"):
            learner = read_ann()
            with userlock.global_lock("ann"):
                add_points_and_put(learner)
            add_points_and_put(learner)
        assert stored_points() == 10

    def test_a_cached_entity_is_read_afresh_under_the_lock(self) -> None:
        """Otherwise the cached object, read without the lock, would be refused."""
        read_ann()
        with userlock.global_lock("ann"):
            add_points_and_put(read_ann())
        assert stored_points() == 5

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

    def test_get_or_insert_creates_under_the_lock_only(self) -> None:
        with pytest.raises(userlock.CreatedWithoutLock):
            Learner.get_or_insert("bob")
        with userlock.global_lock("bob"):
            add_points_and_put(Learner.get_or_insert("bob"))
        assert Learner.get_by_id("bob", use_cache=False).points == 5

    def test_an_entity_whose_id_will_name_its_lock_needs_none_yet(self) -> None:
        """No other request can know the id that Datastore is about to allocate."""
        key = Learner(name="somebody new").put()
        assert key.id()

    def test_put_multi(self) -> None:
        with userlock.global_lock("ann"):
            log = VideoLog(learner_id="ann", seconds=30)
            ndb.put_multi([read_ann(), log])
        assert VideoLog.query().count() == 1

    def test_put_multi_raises_for_the_one_that_has_no_lock(self) -> None:
        with userlock.global_lock("ann"), pytest.raises(userlock.CreatedWithoutLock):
            ndb.put_multi([read_ann(), VideoLog(learner_id="bob")])

    def test_other_models_are_left_alone(self) -> None:
        plain = Plain(number=1)
        plain.put()
        plain.number = 2
        plain.put()
        plain.key.delete()

    def test_delete_under_the_lock(self) -> None:
        with userlock.global_lock("ann"):
            ndb.Key(Learner, "ann").delete()
        assert Learner.get_by_id("ann") is None

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

    def test_the_root_of_the_key_may_name_the_lock(self) -> None:
        with userlock.global_lock("ann"):
            note = Note(parent=ndb.Key(Learner, "ann"), text="hello")
            note.put()
        with pytest.raises(userlock.DeletedWithoutLock, match="'ann'"):
            note.key.delete()


@pytest.mark.usefixtures("ann")
class TestModes:
    def test_log_lets_it_pass_and_logs_it(
        self, caplog: pytest.LogCaptureFixture, events: list[Event]
    ) -> None:
        userlock.configure(enforcement="log")
        with caplog.at_level(logging.WARNING, logger="userlock"):
            add_points_and_put(read_ann())
        assert stored_points() == 5
        assert "PutWithoutLock" in caplog.text
        assert "add_points_and_put" in caplog.text
        assert [event.enforced for event in events if isinstance(event, Violation)] == [False]

    def test_off_checks_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        userlock.configure(enforcement="off")
        with caplog.at_level(logging.WARNING, logger="userlock"):
            add_points_and_put(read_ann())
        assert stored_points() == 5
        assert caplog.text == ""

    def test_suppress_checks_nothing_in_its_block(self) -> None:
        with userlock.suppress("a repair script that runs alone"):
            add_points_and_put(read_ann())
        with pytest.raises(userlock.PutWithoutLock):
            add_points_and_put(read_ann())
        assert stored_points() == 5

    @pytest.mark.parametrize("reason", ["", "  ", None])
    def test_suppress_needs_a_reason(self, reason: Any) -> None:
        with pytest.raises(ValueError, match="needs a reason"), userlock.suppress(reason):
            pass

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

    def test_a_raised_violation_is_an_event_too(self, events: list[Event]) -> None:
        with pytest.raises(userlock.PutWithoutLock) as caught:
            add_points_and_put(read_ann())
        (violation,) = [event for event in events if isinstance(event, Violation)]
        assert violation.error is caught.value
        assert violation.enforced
