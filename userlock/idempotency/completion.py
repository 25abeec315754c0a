"""Unfinished requests become jobs of an outbox: a relay stages them, a worker completes them.

client       row              relay                 worker
begins ────▶ ride
is gone      ride ◀────────── each minute: older
                              than five minutes
                              stage, once ────────▶ the user's lock, the rest of the request
             the answer ◀───────────────────────────
"""

from __future__ import annotations

import functools
import itertools

from google.cloud import ndb

from userlock.idempotency.flows import Flows
from userlock.idempotency.request import Request
from userlock.ndb.owners import in_namespace
from userlock.outbox import Outbox

#: At most so many by one call of the relay, and of one user: the others come with the next ones.
_MOST = 200
_MOST_OF_ONE = 20


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

    def stage(request: Request) -> None:
        if flows.put_off(request):
            complete_request.stage(request.user_id, request.key, dedupe=request.key)

    def stage_all() -> None:
        for request in itertools.islice(flows.unfinished(share=_MOST_OF_ONE), _MOST):
            with in_namespace(request.namespace):
                ndb.transaction(functools.partial(stage, request))

    outbox.each_minute(stage_all)
