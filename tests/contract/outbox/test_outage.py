"""The engine is down for an hour: nothing is lost, and nobody has to do anything."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

from tests.contract.outbox.conftest import Mailbox, rows
from userlock.outbox import Outbox
from userlock.testing import ManualClock

JOBS = 1_000
OWNERS = 200


@pytest.mark.slow
@pytest.mark.parametrize("relayed", [pytest.param(1, marks=pytest.mark.long), 10, None])
def test_an_hour_without_the_engine(
    outbox: Outbox, mailbox: Mailbox, clock: ManualClock, relayed: int | None
) -> None:
    """Handlers go on staging meanwhile, and cron calls the relay each minute, or each ten minutes.
    The control: without a relay.

    `make bench-appengine` has App Engine's transactional tasks in that hour.
    """
    ran: dict[str, list[int]] = {}

    @outbox.job
    def work(user_id: str, number: int) -> None:
        ran.setdefault(user_id, []).append(number)

    mailbox.down = True
    for minute in range(60):
        for number in range(minute * JOBS // 60, (minute + 1) * JOBS // 60):
            work.stage_now(f"learner-{number % OWNERS}", number)
        clock.advance(60)
        if relayed and minute % relayed == relayed - 1:
            assert outbox.relay().woken == 0
    mailbox.down = False
    assert ran == {}
    for _ in range(20):
        if relayed:
            outbox.relay()
        mailbox.deliver_all()
        clock.advance(60)
    if relayed:
        assert rows() == []
        assert sum(map(len, ran.values())) == JOBS
        assert all(numbers == sorted(numbers) for numbers in ran.values()), "each owner in order"
    else:
        assert len(rows()) == JOBS


@pytest.fixture(autouse=True)
def _no_cache(outbox: Outbox) -> Any:
    """The context of the test lives for the whole hour."""
    context = ndb.context.get_context()
    context.set_cache_policy(False)
