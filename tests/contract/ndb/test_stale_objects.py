"""The setting `stale_objects`: attributes read from an object that is out of date."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import stored_points
from tests.contract.ndb.models import Learner
from userlock.events import Event, StaleObject

pytestmark = pytest.mark.usefixtures("context")


class Game(userlock.Model):
    _write_policy = userlock.WritePolicy.IN_TRANSACTION
    score = ndb.IntegerProperty(default=0)


class Team(userlock.UserModel):
    """Its lock id is computed from what is watched."""

    number = ndb.IntegerProperty()

    def _lock_id(self) -> str:
        return f"team-{self.number}"


@pytest.fixture(autouse=True)
def _ann(context: Any) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann", name="Ann").put()
    context.clear_cache()
    userlock.configure(stale_objects="raise")


@pytest.fixture
def told(events: list[Event]) -> Any:
    return lambda: [event for event in events if isinstance(event, StaleObject)]


def read_ann() -> Learner:
    learner: Learner = Learner.get_by_id("ann", use_cache=False)
    return learner


def add_five() -> None:
    learner = read_ann()
    learner.points += 5
    learner.put()


def look_at(learner: Learner) -> int:
    points: int = learner.points
    return points


class TestRaise:
    def test_an_object_that_is_out_of_date(self, told: Any) -> None:
        with userlock.global_lock("ann"):
            older = read_ann()
            add_five()
            with pytest.raises(userlock.StaleObjectUsed) as caught:
                look_at(older)
        error = caught.value
        assert error.key == ndb.Key(Learner, "ann")
        assert error.lock_id == "ann"
        assert "read_ann" in str(error.read_at)
        assert "add_five" in str(error.newer_put_at)
        assert "look_at" in str(error.used_at)
        assert "read it again" in str(error)
        (event,) = told()
        assert event.enforced
        assert event.error is error

    def test_its_key_may_be_read(self) -> None:
        with userlock.global_lock("ann"):
            older = read_ann()
            add_five()
            assert older.key.id() == "ann"

    def test_its_put_is_a_stomp_as_ever(self) -> None:
        with userlock.global_lock("ann"):
            older = read_ann()
            add_five()
            with pytest.raises(userlock.InternalStomp):
                older.put()
        assert stored_points() == 5

    def test_what_a_transaction_reads_after_its_own_put(self) -> None:
        """It sees the state at its beginning."""

        def add_and_look() -> None:
            add_five()
            look_at(read_ann())

        with userlock.global_lock("ann"), pytest.raises(userlock.StaleObjectUsed):
            ndb.transaction(add_and_look)

    def test_under_another_policy_within_its_transaction(self) -> None:
        def play() -> None:
            older, newer = (key.get(use_cache=False) for _ in range(2))
            newer.score += 1
            newer.put()
            look_at_score(older)

        def look_at_score(game: Game) -> None:
            assert game.score

        key = ndb.transaction(lambda: Game(id="g").put())
        with pytest.raises(userlock.StaleObjectUsed) as caught:
            ndb.transaction(play)
        assert caught.value.lock_id is None

    def test_a_lock_id_that_is_computed(self) -> None:
        with userlock.global_lock("team-1"):
            key = Team(number=1).put()
            older = key.get(use_cache=False)
            newer = key.get(use_cache=False)
            newer.put()
            with pytest.raises(userlock.StaleObjectUsed):
                older.number  # noqa: B018


class TestNot:
    """What a careless check would report."""

    def test_the_object_that_was_put(self) -> None:
        with userlock.global_lock("ann"):
            learner = read_ann()
            learner.points = 3
            learner.put()
            assert learner.points == 3

    def test_one_that_was_read_after_the_put(self) -> None:
        with userlock.global_lock("ann"):
            add_five()
            assert look_at(read_ann()) == 5

    def test_a_new_object(self) -> None:
        with userlock.global_lock("ann"):
            add_five()
            assert Learner(id="ann", points=4).points == 4

    def test_another_entity(self) -> None:
        with userlock.global_locks(["ann", "bob"]):
            Learner(id="bob").put()
            ann = read_ann()
            Learner.get_by_id("bob", use_cache=False).put()
            assert look_at(ann) == 0

    def test_after_a_put_that_was_rolled_back(self) -> None:
        def change_and_fail() -> None:
            add_five()
            raise ZeroDivisionError

        with userlock.global_lock("ann"):
            learner = read_ann()
            with pytest.raises(ZeroDivisionError):
                ndb.transaction(change_and_fail)
            assert look_at(learner) == 0

    def test_what_is_suppressed(self) -> None:
        with userlock.global_lock("ann"):
            older = read_ann()
            add_five()
            with userlock.suppress("to compare them"):
                assert look_at(older) == 0


class TestOtherReactions:
    def test_warn_says_it_once_of_each_object(
        self, told: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        userlock.configure(stale_objects="warn")
        with userlock.global_lock("ann"), caplog.at_level(logging.WARNING, logger="userlock"):
            older = read_ann()
            add_five()
            for _ in range(3):
                assert look_at(older) == 0
        assert [event.enforced for event in told()] == [False]
        assert "look_at" in caplog.text

    def test_off_says_nothing(self, told: Any) -> None:
        userlock.configure(stale_objects="off")
        with userlock.global_lock("ann"):
            older = read_ann()
            add_five()
            assert look_at(older) == 0
        assert told() == []


def test_attributes_are_not_watched_until_somebody_asks_for_it() -> None:
    program = (
        "from google.cloud import ndb\n"
        "get = ndb.Property.__get__\n"
        "import userlock; userlock.UserModel\n"
        "assert ndb.Property.__get__ is get\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
