"""Periodic jobs: a row for each, with the period for which it was staged last.

relay A                        UserLockPeriod             relay B
period 41: reads 40 ─────────▶ 40
                               40 ◀────────────────────── reads 40
commit: 41, and the job ─────▶ 41
                               41 ◀────────────────────── commit: refused, and tried again:
                                                          it is 41 already
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

from userlock.ndb.model import Model, WriteIdProperty
from userlock.ndb.owners import in_namespace, joined
from userlock.ndb.policies import WritePolicy
from userlock.outbox.job import Job


class PeriodRow(Model):
    """A periodic job. `period`: the number of the one for which it was staged, since 1970."""

    _write_policy = WritePolicy.IN_TRANSACTION
    write_id = WriteIdProperty()
    period = ndb.IntegerProperty(indexed=False)

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockPeriod"


def stage_period(outbox: str, job: Job[..., Any], wall: float) -> None:
    """Stage a periodic job if that was not done in this period. In an ndb context.

    Where it is new, it runs first when the next period begins.
    """
    period = int(wall // (job.every or 1))
    with in_namespace(""):
        key = ndb.Key(PeriodRow, joined(outbox, job.name))
        known = key.get(use_cache=False, use_global_cache=False)
        if known is not None and known.period >= period:
            return

        def stage() -> None:
            row = key.get()
            if row is None:
                PeriodRow(key=key, period=period).put()
            elif row.period < period:
                row.period = period
                row.put()
                job.stage()

        ndb.transaction(stage)
