"""The engine is down for an hour: nothing is lost, and nobody has to do anything."""

from __future__ import annotations

import pytest
from google.cloud import ndb

from tests.contract.outbox.conftest import Mailbox, rows
from userlock.outbox import Outbox
from userlock.testing import ManualClock


@pytest.mark.slow
@pytest.mark.parametrize("relayed", [True, False])
def test_an_hour_without_the_engine(
    outbox: Outbox, mailbox: Mailbox, clock: ManualClock, relayed: bool
) -> None:
    """Handlers go on staging meanwhile, and cron calls the relay each ten minutes. The control:
    without a relay."""
    ndb.context.get_context().set_cache_policy(False)  # it lives for the whole hour
    ran: dict[str, list[int]] = {}

    @outbox.job
    def work(user_id: str, number: int) -> None:
        ran.setdefault(user_id, []).append(number)

    mailbox.down = True
    for minute in range(60):
        for number in range(5):
            work.stage_now(f"learner-{minute * 5 % 60 + number}", minute)
        clock.advance(60)
        if relayed and minute % 10 == 9:
            assert outbox.relay().woken == 0
    mailbox.down = False
    assert ran == {}
    for _ in range(10):
        if relayed:
            outbox.relay()
        mailbox.deliver_all()
        clock.advance(60)
    assert len(rows()) == (0 if relayed else 300)
    if relayed:
        assert sum(map(len, ran.values())) == 300
        assert all(numbers == sorted(numbers) for numbers in ran.values()), "each owner in order"
