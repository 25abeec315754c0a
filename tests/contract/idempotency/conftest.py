"""Requests on the emulator, with a payment provider; time by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from userlock.idempotency import Flow, Flows, Request
from userlock.idempotency.rows import RequestRow
from userlock.testing import ManualClock

KEY = "0ccb7813-e63d-4377-93c5-476cb93038f3"


class Ride(userlock.UserModel):
    _lock_id = "user_id"
    user_id = ndb.StringProperty(required=True)
    charge = ndb.StringProperty()


class CardDeclined(Exception):
    """The provider's final refusal."""


class Provider:
    """A payment provider that honours keys.

    Attributes:
        charges: by key.
        asked: how often.
        trouble: raised before the charge; `lost` after it.
    """

    def __init__(self) -> None:
        self.charges: dict[str, str] = {}
        self.asked = 0
        self.trouble: Exception | None = None
        self.lost: Exception | None = None

    def charge(self, key: str) -> str:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        made = self.charges.setdefault(key, f"charge-{len(self.charges) + 1}")
        if self.lost is not None:
            raise self.lost
        return made


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def flows(
    ndb_client: ndb.Client, clock: ManualClock, service: userlock.LockService
) -> Iterator[Flows]:
    """Provide flows inside an ndb context without a cache."""
    with ndb_client.context(cache_policy=False):
        yield Flows(clock=clock)


@pytest.fixture
def ride(provider: Provider) -> Callable[[Flow], Any]:
    """Provide the function of a request: a ride, a charge, and the answer."""

    def create(flow: Flow) -> None:
        def begin() -> int:
            made = Ride(user_id=flow.user_id)
            return int(made.put().id())

        ride_id = flow.phase("ride", begin)
        final: dict[type[Exception], int] = {CardDeclined: 402}
        charge = flow.external("charge", provider.charge, final=final, detail=True)
        with flow.last() as end:
            found = Ride.get_by_id(ride_id)
            found.charge = charge
            found.put()
            end.respond({"ride": ride_id, "charge": charge}, 201)

    return create


def request(user_id: str = "ann", key: str = KEY, **changes: Any) -> Request:
    return Request(user_id, key, "rides", {"to": "home"})._replace(**changes)


def rows() -> list[Any]:
    return list(RequestRow.query(namespace=""))


def rides() -> list[Any]:
    return list(Ride.query())
