"""The setting `blind_overwrites`: new objects put over entities that exist."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import stored_points
from tests.contract.ndb.models import Learner, VideoLog
from userlock.events import BlindOverwrite, Event
from userlock.testing import allow_unlocked

pytestmark = pytest.mark.usefixtures("context")


class Ticket(userlock.Model):
    _write_policy = userlock.WritePolicy.WRITE_ONCE
    cents = ndb.IntegerProperty()


@pytest.fixture(autouse=True)
def _ann(context: Any) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann", points=7).put()
    context.clear_cache()


@pytest.fixture(params=["alone", "transaction"])
def around(request: pytest.FixtureRequest) -> Any:
    return (lambda action: action()) if request.param == "alone" else ndb.transaction


@pytest.fixture
def overwrites(events: list[Event]) -> Any:
    return lambda: [event for event in events if isinstance(event, BlindOverwrite)]


def put_new_ann() -> None:
    Learner(id="ann", points=1).put()


class TestRaise:
    """The default."""

    def test_it_is_refused(self, around: Any, overwrites: Any) -> None:
        with userlock.global_lock("ann"), pytest.raises(userlock.EntityExistsError):
            around(put_new_ann)
        assert stored_points() == 7
        assert overwrites() == []


class TestWarn:
    @pytest.fixture(autouse=True)
    def _warn(self, context: Any) -> None:
        userlock.configure(blind_overwrites="warn")

    def test_it_lands_with_a_warning(
        self, around: Any, overwrites: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        with userlock.global_lock("ann"), caplog.at_level(logging.WARNING, logger="userlock"):
            around(put_new_ann)
        assert stored_points() == 1
        (event,) = overwrites()
        assert event.lock_id == "ann"
        assert isinstance(event.error, userlock.EntityExistsError)
        assert "put_new_ann" in caplog.text
        assert "blind overwrite" in caplog.text

    def test_a_new_entity_causes_no_warning(self, around: Any, overwrites: Any) -> None:
        with userlock.global_lock("bob"):
            around(Learner(id="bob", points=2).put)
        assert stored_points("bob") == 2
        assert overwrites() == []

    def test_of_several_only_the_existing_one_causes_a_warning(
        self, around: Any, overwrites: Any
    ) -> None:
        def put_all() -> None:
            learners = [Learner(id=name, points=1) for name in ("abe", "ann", "bob")]
            ndb.put_multi([*learners, VideoLog(learner_id="ann")])

        with allow_unlocked("arranging data"):
            around(put_all)
        assert [stored_points(name) for name in ("abe", "ann", "bob")] == [1, 1, 1]
        assert VideoLog.query().count() == 1
        assert [event.error.key.id() for event in overwrites()] == ["ann"]

    def test_the_object_may_be_changed_and_put_again(self, around: Any) -> None:
        with userlock.global_lock("ann"):
            learner = Learner(id="ann", points=1)
            around(learner.put)
            learner.points = 2
            learner.put()
        assert stored_points() == 2

    def test_an_immutable_entity_is_refused_all_the_same(self, around: Any) -> None:
        Ticket(id="t1", cents=5).put()
        with pytest.raises(userlock.EntityExistsError):
            around(Ticket(id="t1", cents=6).put)
        assert Ticket.get_by_id("t1", use_cache=False).cents == 5


class TestOff:
    def test_it_lands(self, around: Any, overwrites: Any) -> None:
        userlock.configure(blind_overwrites="off")
        with userlock.global_lock("ann"):
            around(put_new_ann)
        assert stored_points() == 1
        assert overwrites() == []

    def test_a_model_may_allow_it(
        self, around: Any, overwrites: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Learner, "_overwrites", True)
        with userlock.global_lock("ann"):
            around(put_new_ann)
        assert stored_points() == 1
        assert overwrites() == []
