"""Jobs that are never lost: staged in the caller's transaction, run after it.

outbox.py  the app's outbox;  job.py: what it declares and stages;  rows.py: in Datastore
worker.py  claims, runs and removes;  context.py: the job that the running code belongs to
relay.py   asks again for rows that are still there;  waking.py: asks engines, behind a breaker
engines/   Cloud Tasks, RQ, threads of this process;  authentication.py: who may call endpoints
dead_letters.py lists, redrives, purges;  listing.py: for operators
"""

from __future__ import annotations

from userlock.outbox.context import JobContext, RetryAfter, current_job
from userlock.outbox.engines import Engine, EngineError, Wake
from userlock.outbox.job import Job, Retry, StagedJob
from userlock.outbox.outbox import Outbox
from userlock.outbox.worker import Outcome

__all__ = [
    "Engine",
    "EngineError",
    "Job",
    "JobContext",
    "Outbox",
    "Outcome",
    "Retry",
    "RetryAfter",
    "StagedJob",
    "Wake",
    "current_job",
]
