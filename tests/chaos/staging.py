"""Operations that stage jobs in a transaction, alone or with a change of counters."""

from __future__ import annotations

import time
from random import Random

from google.cloud import ndb

from tests.chaos.jobs import FOR_EVER
from tests.chaos.programs import Operation, one_of
from tests.chaos.request import Request

_KINDS = {
    "plain": 8,
    "transactional": 10,
    "unordered": 3,
    "poisoned": 1,
    "poisoned-transactional": 1,
}
_FAILURES = {0: 12, 1: 3, 2: 1}
_FAILURES_LENGTHY = {0: 1, 1: 2, 2: 1}
#: The time that a job takes, in seconds. The longest is beyond its claim.
_LASTS = {0.0: 25, 0.03: 20, 0.3: 7}
_LASTS_LENGTHY = {0.0: 1, 3.5: 4}
_NUMBERS = {1: 6, 2: 2, 3: 1}


def stage_jobs(request: Request) -> None:
    """Stage one or several jobs in a transaction, which may be rolled back on purpose.

    Each attempt of it makes the same choices.
    """
    operation = request.operation

    def step() -> None:
        random = _random_of(operation)
        if random.random() < 0.5:
            for name, entity in request.read():
                changed, write = request.changed(name, entity)
                request.report(write, changed.put)
        for _ in range(one_of(random, _NUMBERS)):
            _stage_one(request, random)
        if random.random() < 0.5:
            time.sleep(operation.pause)  # a job that did not wait for the commit would run now
        if random.random() < 0.12:
            raise ndb.exceptions.Rollback

    request.transact(step)


def _stage_one(request: Request, random: Random) -> None:
    operation = request.operation
    kind = one_of(random, _KINDS)
    usual = _FAILURES_LENGTHY if operation.lengthy else _FAILURES
    failures = FOR_EVER if kind.startswith("poisoned") else one_of(random, usual)
    named = random.random() < 0.15
    request.stage(
        kind,
        random.choice(operation.users),
        lasts=one_of(random, _LASTS_LENGTHY if operation.lengthy else _LASTS),
        failures=failures,
        dedupe="recount" if named else None,
        delay=0.5 if random.random() < 0.1 else None,
    )


def _random_of(operation: Operation) -> Random:
    return Random(f"{operation.name}/{operation.pause}")
