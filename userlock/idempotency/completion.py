"""Unfinished requests become jobs of an outbox: a relay stages them, a worker completes them.

client       row              relay                 worker
begins ────▶ ride
is gone      ride ◀────────── each minute: older
                              than five minutes
                              stage, once ────────▶ the user's lock, the rest of the request
             the answer ◀───────────────────────────
"""

from __future__ import annotations

import itertools

from userlock.idempotency.flows import Flows
from userlock.ndb.owners import in_namespace
from userlock.outbox import Outbox

#: At most so many by one call of the relay: the others come with the next ones.
_MOST = 200


def complete_by_relay(flows: Flows, outbox: Outbox) -> None:
    """Let the relays of an outbox complete unfinished requests.

        flows = Flows(client=ndb.Client)
        complete_by_relay(flows, outbox)

    A request is completed five minutes after its attempt, under its user's lock, with
    batch priority. One that fails again is tried after twice the time, at most an
    hour, and never given up; `userlock flows list` shows it.

    Args:
        flows: their functions, and completable views.
        outbox: its workers know these functions, too.
    """

    @outbox.job(name="userlock.complete_request", ordered=False)
    def complete_request(user_id: str, key: str) -> None:
        request = flows.find(user_id, key)
        if request is not None:
            flows.complete_one(request)

    def stage() -> None:
        for request in itertools.islice(flows.unfinished(), _MOST):
            with in_namespace(request.namespace):
                complete_request.stage_now(request.user_id, request.key, dedupe=request.key)

    outbox.each_minute(stage)
