"""One request, however often it is sent: idempotency keys, recovery points, replay.

flows.py       what an app declares; unfinished requests, answers that are no longer kept
request.py     a request: its parts, and what they must be
runner.py      runs a request once, or replays its answer
flow.py        one attempt: phases, calls of other services, the last transaction
rows.py        the rows in Datastore, and their keys
answers.py     answers that can be given again
completion.py  unfinished requests as jobs of an outbox
"""

from __future__ import annotations

from userlock.idempotency.answers import Answer
from userlock.idempotency.completion import complete_by_relay
from userlock.idempotency.flow import Flow
from userlock.idempotency.flows import Flows
from userlock.idempotency.request import Request

__all__ = ["Answer", "Flow", "Flows", "Request", "complete_by_relay"]
