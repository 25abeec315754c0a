"""A write that nobody asks for its outcome: no answer is stored before it has landed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import userlock
from tests.contract.idempotency.conftest import CardDeclined, Provider, Ride, request
from tests.contract.ndb.actions import Elsewhere
from userlock.idempotency import Flow, Flows, flow

Ending = Callable[[Flow, Provider], Any]


def returns(flow: Flow, provider: Provider) -> str:
    return "done"


def ends_in_last(flow: Flow, provider: Provider) -> None:
    with flow.last() as end:
        end.respond("done")


def ends_in_a_call(flow: Flow, provider: Provider) -> None:
    provider.trouble = CardDeclined()
    flow.external("charge", provider.charge, final={CardDeclined: 402})


def write_without_a_lock(key: Any) -> None:
    """Write as another program."""
    with userlock.scope(settings=userlock.Settings(enforcement="off")):
        ride = key.get()
        ride.charge = "another's"
        ride.put()


def send(flows: Flows, end: Ending, provider: Provider, elsewhere: Elsewhere) -> Callable[[], str]:
    """Return what sends a request; the first attempt loses against the other program."""
    with userlock.global_lock("ann"):
        key = Ride(user_id="ann").put()

    def change(flow: Flow) -> Any:
        ride = key.get()
        if flow.attempt == 1:
            elsewhere(lambda: write_without_a_lock(key))
        ride.charge = "ours"
        ride.put_async()
        return end(flow, provider)

    def run() -> str:
        flows.run(request(), change)
        return str(key.get(use_cache=False).charge)

    return run


@pytest.mark.parametrize("end", [returns, ends_in_last, ends_in_a_call])
def test_the_next_attempt_makes_the_change(
    flows: Flows, end: Ending, provider: Provider, elsewhere: Elsewhere
) -> None:
    run = send(flows, end, provider, elsewhere)
    with pytest.raises(userlock.StaleWriteError):
        run()
    assert run() == "ours"


def test_the_control_has_answered(
    flows: Flows, provider: Provider, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the answer is stored first."""
    monkeypatch.setattr(flow, "finish_writes", lambda: None)
    run = send(flows, returns, provider, elsewhere)
    with pytest.raises(userlock.StaleWriteError):
        run()
    assert run() == "another's"
