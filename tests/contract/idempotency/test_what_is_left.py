"""Answers are removed when they are no longer kept, unfinished requests are completed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.idempotency.conftest import KEY, Provider, request, rows
from userlock.errors import ExternalUnavailable
from userlock.idempotency import Flow, Flows
from userlock.testing import ManualClock

DAY = 24 * 3600


def fail(flow: Flow) -> None:
    flow.phase("begun", lambda: 1)
    raise RuntimeError("a bug")


def test_answers_are_kept_for_a_day_and_unfinished_requests_for_ever(
    flows: Flows, clock: ManualClock
) -> None:
    flows.run(request(), lambda flow: 1)
    with pytest.raises(RuntimeError):
        flows.run(request("bob"), fail)
    for seconds, left in ((0, [False, True]), (DAY - 1, [False, True]), (2, [False])):
        clock.advance(seconds)
        flows.reap()
        assert sorted(row.is_finished for row in rows()) == left
    clock.advance(400 * DAY)
    flows.reap()
    assert [row.is_finished for row in rows()] == [False]


def test_the_server_completes_requests(
    flows: Flows, clock: ManualClock, provider: Provider
) -> None:
    @flows.function(name="pay")
    def pay(flow: Flow, cents: int) -> dict[str, Any]:
        return {"charge": flow.external("charge", provider.charge), "cents": cents}

    provider.lost = ConnectionError("reset")
    with pytest.raises(ExternalUnavailable):
        pay("ann", KEY, cents=5)
    with pytest.raises(RuntimeError):
        flows.run(request("bob"), fail)  # of another app
    provider.lost = None
    assert list(flows.complete()) == [], "it may be running"
    clock.advance(301)
    ((completed, answer),) = flows.complete()
    assert (completed.user_id, completed.params) == ("ann", {"cents": 5})
    assert answer is not None
    assert answer.value == {"charge": "charge-1", "cents": 5}
    assert pay("ann", KEY, cents=5) == answer.value
    assert list(flows.complete()) == []
    assert len(provider.charges) == 1


def test_one_that_fails_again_does_not_stop_the_others(
    flows: Flows, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @flows.function(name="work")
    def work(flow: Flow) -> str:
        ran.append(flow.user_id)
        if flow.user_id == "ann" or len(ran) <= 3:
            raise RuntimeError("a bug")
        return "done"

    for user in ("ann", "bob", "cem"):
        with pytest.raises(RuntimeError):
            work(user, KEY)
    clock.advance(301)
    outcomes = {asked.user_id: answer for asked, answer in flows.complete()}
    assert outcomes["ann"] is None
    assert all(outcomes[each] is not None for each in ("bob", "cem"))
    assert "not complete" in caplog.text
