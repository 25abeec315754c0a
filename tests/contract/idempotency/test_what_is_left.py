"""Answers are removed when they are no longer kept, unfinished requests are completed."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from tests.contract.idempotency.conftest import KEY, Provider, request, rows
from userlock.errors import ExternalUnavailable
from userlock.idempotency import Flow, Flows
from userlock.testing import ManualClock

DAY = 24 * 3600


def fail(flow: Flow) -> None:
    flow.phase("begun", lambda: 1)
    raise RuntimeError("a bug")


@hypothesis.given(
    ages=strategies.lists(
        strategies.tuples(strategies.booleans(), strategies.integers(0, 400 * DAY)),
        max_size=6,
    )
)
@hypothesis.settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_unfinished_requests_of_any_age_survive(
    flows: Flows, clock: ManualClock, ages: list[tuple[bool, int]]
) -> None:
    for row in rows():
        row.key.delete()
    begun = clock.wall()
    waited = 0
    wanted = 0
    now = max([age for _, age in ages], default=0)
    for number, (finished, age) in enumerate(sorted(ages, key=lambda each: -each[1])):
        clock.advance(max(now - age - waited, 0))
        waited = max(now - age, waited)
        key = f"{KEY}-{number}"
        if finished:
            flows.run(request(key=key), lambda flow: 1)
            wanted += clock.wall() + DAY > begun + now
        else:
            with pytest.raises(RuntimeError):
                flows.run(request(key=key), fail)
            wanted += 1
    clock.advance(now - waited)
    flows.reap()
    assert len(rows()) == wanted
    assert sum(not row.is_finished for row in rows()) == sum(not done for done, _ in ages)


def test_a_row_that_was_used_again_is_not_removed(flows: Flows, clock: ManualClock) -> None:
    """The reaper looks again in the transaction that removes it."""
    flows.run(request(), lambda flow: 1)
    clock.advance(DAY + 1)
    assert not flows._remove(rows()[0].key, 0)
    assert flows.reap() == 1
    assert rows() == []


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
