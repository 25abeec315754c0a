"""One request, however often it is sent: idempotency keys, recovery points, replay.

flows.py       what an app declares; unfinished requests, as jobs; answers that are no longer kept
runner.py      runs a request once, or replays its answer
flow.py        one attempt: phases, calls of other services, the last transaction
user_lock.py   the user's lock meanwhile
rows.py        requests, and their rows in Datastore
answers.py     answers that can be given again
"""

from __future__ import annotations

from userlock.idempotency.answers import Answer
from userlock.idempotency.flow import Flow
from userlock.idempotency.flows import Flows, complete_by_relay
from userlock.idempotency.rows import Request

__all__ = ["Answer", "Flow", "Flows", "Request", "complete_by_relay"]
