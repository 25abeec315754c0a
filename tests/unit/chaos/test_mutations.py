"""The negative controls replace existing names: the library's own names change now and then."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from tests.chaos.mutations import Mutation, apply
from userlock.ndb.commits import Write
from userlock.ndb.fencing import PutTicket
from userlock.ndb.stub import _Commit


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    mock.patch.stopall()


@pytest.mark.parametrize("mutation", Mutation)
def test_a_rule_can_be_disabled(mutation: Mutation) -> None:
    apply(mutation)


@pytest.mark.parametrize(
    ("mutation", "name", "value"),
    [(Mutation.TICKETS, "base_version", 0), (Mutation.INSERTS, "must_be_new", False)],
)
def test_tickets_without_fencing(mutation: Mutation, name: str, value: object) -> None:
    assert name in Write.__annotations__
    apply(mutation)
    one = object.__new__(PutTicket)
    setattr(one, name, 7)
    assert getattr(one, name) == value


def test_commits_have_no_plan_without_fencing() -> None:
    assert callable(_Commit.future)
    apply(Mutation.GATE)
    request = mock.Mock(mutations=[], spec=["mutations"])
    assert _Commit._plan_of(mock.Mock(), request) is None
