"""The setting `blind_overwrites`: new objects put over entities that exist."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import stored_points
from tests.contract.ndb.models import Learner

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


def put_new_ann() -> None:
    Learner(id="ann", points=1).put()


class TestRaise:
    """The default."""

    def test_it_is_refused(self, around: Any) -> None:
        with userlock.global_lock("ann"), pytest.raises(userlock.EntityExistsError):
            around(put_new_ann)
        assert stored_points() == 7

    def test_an_immutable_entity_is_refused_all_the_same(self, around: Any) -> None:
        userlock.configure(blind_overwrites="off")
        Ticket(id="t1", cents=5).put()
        with pytest.raises(userlock.EntityExistsError):
            around(Ticket(id="t1", cents=6).put)
        assert Ticket.get_by_id("t1", use_cache=False).cents == 5


class TestOff:
    def test_it_lands(self, around: Any) -> None:
        userlock.configure(blind_overwrites="off")
        with userlock.global_lock("ann"):
            around(put_new_ann)
        assert stored_points() == 1

    def test_a_model_may_allow_it(self, around: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Learner, "_overwrites", True)
        with userlock.global_lock("ann"):
            around(put_new_ann)
        assert stored_points() == 1
