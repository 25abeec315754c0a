"""A paid request with everything that must happen once, and a check that it has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from google.api_core.exceptions import GoogleAPIError
from google.cloud import ndb

import userlock
from tests.contract.idempotency.conftest import CardDeclined, Provider, Ride, request, rows
from tests.contract.outbox.conftest import Mailbox
from userlock.idempotency import Answer, Flow, Flows, Request
from userlock.outbox import Outbox
from userlock.outbox.rows import JobRow


class Paid:
    """An app with a paid request.

    Attributes:
        refused: whether the provider's final refusal is expected.
        completable: whether the server can complete it; else the first commit stores it.
        settings: of the scopes of all who act.
        answers: of all senders that got one.
        errors: of the others.
        on: called at each point of an attempt, with its name.
    """

    #: Between the commits of an attempt.
    POINTS = ("begun", "after the phase", "before the call", "charged", "recorded")

    def __init__(self, flows: Flows, client: ndb.Client, provider: Provider) -> None:
        self.flows = flows
        self.provider = provider
        self.refused = False
        self.answers: list[Answer] = []
        self.errors: list[Exception] = []
        self.completable = True
        self.settings: userlock.Settings | None = None
        self.on: Callable[[str], None] = lambda point: None
        self.outbox = Outbox(Mailbox(), client=client)
        self._receipt = self.outbox.job(name="receipt")(lambda user_id, charge: None)
        flows.function(self._serve, name="rides")

    def send(self) -> None:
        """Send the request, from a client."""
        self._collect(lambda: self.answers.append(self.flows.run(self._request())))

    def _request(self) -> Request:
        return request(completable=self.completable)

    def complete(self) -> None:
        """Complete what is left, as the server does it."""
        self._collect(lambda: list(self.flows.complete(older_than=0)))

    def reap(self) -> None:
        """Remove what is no longer kept."""
        self._collect(self.flows.reap)

    def _collect(self, work: Callable[[], object]) -> None:
        try:
            with userlock.scope(settings=self.settings):
                work()
        except (userlock.UserLockError, GoogleAPIError) as error:
            self.errors.append(error)

    def check(self) -> None:
        """Check that all of it has happened once, and that the answer is given again."""
        charges: list[str | None] = list(self.provider.charges.values())
        rides = list(Ride.query())
        assert len(charges) == (not self.refused)
        assert [each.charge for each in rides] == (charges or [None])
        assert JobRow.query(namespace="").count() == (not self.refused)
        assert [row.is_finished for row in rows()] == [True]
        (answer,) = {(each.status, each.headers, each.body) for each in self.answers}
        assert answer[0] == (402 if self.refused else 201)
        with userlock.scope():
            again = self.flows.run(self._request())
        assert again.replayed
        assert (again.status, again.headers, again.body) == answer

    def _serve(self, flow: Flow, to: str) -> None:
        self.on("begun")
        ride_id = flow.phase("ride", lambda: Ride(user_id=flow.user_id).put().id())
        self.on("after the phase")
        charge = flow.external("charge", self._charge, final={CardDeclined: 402})
        self.on("recorded")
        with flow.last() as end:
            ride = Ride.get_by_id(ride_id)
            ride.charge = charge
            ride.put()
            self._receipt.stage(flow.user_id, charge)
            end.respond({"ride": ride_id, "to": to, "charge": charge}, 201)

    def _charge(self, key: str) -> str:
        self.on("before the call")
        try:
            return self.provider.charge(key)
        finally:
            self.on("charged")


def once(point: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Return a function that acts the first time that an attempt reaches a point."""
    left = [point]

    def on(here: str) -> None:
        with contextlib.suppress(ValueError):
            left.remove(here)
            act()

    return on
