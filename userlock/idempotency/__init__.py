"""One request, however often it is sent: idempotency keys, recovery points, replay.

flows.py    runs a request once, and replays its answer
flow.py     one attempt: phases, calls of other services, the last transaction
rows.py     the rows in Datastore, and their keys
answers.py  answers that can be given again
"""

from __future__ import annotations

from userlock.idempotency.answers import Answer
from userlock.idempotency.flow import Flow
from userlock.idempotency.flows import Flows, Request

__all__ = ["Answer", "Flow", "Flows", "Request"]
