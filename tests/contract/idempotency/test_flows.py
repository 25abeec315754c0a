"""A request runs once, and its answer is given again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import userlock
from tests.contract.idempotency.conftest import (
    KEY,
    CardDeclined,
    Provider,
    Ride,
    request,
    rides,
    rows,
)
from userlock.errors import (
    EntityExistsError,
    ExternalUnavailable,
    FlowChanged,
    IdempotencyKeyRefused,
    IdempotencyKeyReused,
    NotStorable,
)
from userlock.idempotency import Flow, Flows
from userlock.testing import ManualClock

Function = Callable[[Flow], Any]


def test_a_request_and_its_replay(flows: Flows, ride: Function, provider: Provider) -> None:
    first = flows.run(request(), ride)
    again = flows.run(request(), ride)
    assert (first.status, first.replayed) == (201, False)
    assert (again.status, again.body, again.headers) == (201, first.body, first.headers)
    assert again.replayed
    assert first.value["charge"] == "charge-1"
    assert provider.asked == 1
    assert [each.charge for each in rides()] == ["charge-1"]


def test_keys_belong_to_users(flows: Flows, ride: Function) -> None:
    flows.run(request(), ride)
    assert not flows.run(request("bob"), ride).replayed
    assert len(rides()) == 2


@pytest.mark.parametrize(
    "changes",
    [{"params": {"to": "work"}}, {"method": "PATCH"}, {"path": "/x"}, {"flow": "walks"}],
)
def test_another_request_of_the_same_key(
    flows: Flows, ride: Function, changes: dict[str, Any]
) -> None:
    flows.run(request(), ride)
    with pytest.raises(IdempotencyKeyReused):
        flows.run(request(**changes), ride)


def test_a_user_may_be_a_number(flows: Flows, ride: Function) -> None:
    flows.run(request(7), ride)  # type: ignore[arg-type]
    assert flows.run(request("7"), ride).replayed


@pytest.mark.parametrize("key", ["", "x" * 256, "a space in it, and long", "\u00e4" * 30])
def test_malformed_keys(flows: Flows, ride: Function, key: str) -> None:
    with pytest.raises(IdempotencyKeyRefused, match="1 to 255"):
        flows.run(request(key=key, method="POST"), ride)
    assert rows() == []


def test_a_final_refusal_is_the_answer(flows: Flows, ride: Function, provider: Provider) -> None:
    provider.trouble = CardDeclined("too poor")
    first = flows.run(request(), ride)
    provider.trouble = None
    again = flows.run(request(), ride)
    assert (first.status, again.status, again.replayed) == (402, 402, True)
    assert again.value["detail"] == "too poor"
    assert provider.charges == {}


@pytest.mark.parametrize("lost", [False, True])
def test_a_service_that_fails_for_now(
    flows: Flows, ride: Function, provider: Provider, lost: bool
) -> None:
    """Perhaps after it has charged: the same key finds that charge."""
    setattr(provider, "lost" if lost else "trouble", ConnectionError("reset"))
    with pytest.raises(ExternalUnavailable):
        flows.run(request(), ride)
    assert provider.asked == 3
    provider.trouble = provider.lost = None
    assert flows.run(request(), ride).status == 201
    assert len(provider.charges) == 1
    assert len(rides()) == 1


def test_a_bug_leaves_the_request_unfinished(flows: Flows, provider: Provider) -> None:
    done = []

    def buggy(flow: Flow) -> dict[str, str]:
        flow.phase("begin", lambda: done.append("begin"))
        charge = flow.external("charge", provider.charge)
        if len(done) == 1:
            done.append("bug")
            raise RuntimeError("a bug")
        return {"charge": charge}

    with pytest.raises(RuntimeError):
        flows.run(request(), buggy)
    assert rows()[0].expire_at is None
    assert flows.run(request(), buggy).value == {"charge": "charge-1"}
    assert done == ["begin", "bug"]
    assert provider.asked == 1


def test_an_answer_is_kept_for_a_day(flows: Flows, ride: Function, clock: ManualClock) -> None:
    flows.run(request(), ride)
    clock.advance(24 * 3600 - 1)
    assert flows.run(request(), ride).replayed
    clock.advance(2)
    assert not flows.run(request(), ride).replayed, "the key may be used again"
    assert len({each.charge for each in rides()}) == 2, "for another charge"


def test_a_deploy_that_renames_a_phase(flows: Flows) -> None:
    def before(flow: Flow) -> None:
        flow.phase("ride", lambda: 1)
        raise RuntimeError("the process is replaced")

    with pytest.raises(RuntimeError):
        flows.run(request(), before)
    ran = []
    with pytest.raises(FlowChanged, match=r"'ride'.*'journey'"):
        flows.run(request(), lambda flow: flow.phase("journey", lambda: ran.append(1)))
    with pytest.raises(FlowChanged, match=r"'ride'.*ends without it"):
        flows.run(request(), lambda flow: 7)
    assert ran == []


@pytest.mark.parametrize("output", [{1, 2}, object(), {"a": {3: 4}}, float("nan"), b"bytes"])
def test_outputs_that_cannot_be_stored(flows: Flows, output: object) -> None:
    with pytest.raises(NotStorable, match="cannot be stored"):
        flows.run(request(), lambda flow: flow.phase("ride", lambda: output))
    with pytest.raises(NotStorable, match="cannot be stored"):
        flows.run(request(key=KEY + "-2"), lambda flow: output)


def test_a_last_block_without_an_answer(flows: Flows) -> None:
    def forgets(flow: Flow) -> None:
        with flow.last():
            Ride(user_id="ann").put()

    with pytest.raises(NotStorable, match=r"end\.respond"):
        flows.run(request(), forgets)
    assert rides() == []


@pytest.mark.parametrize("completable", [True, False], ids=["stored", "by its first commit"])
@pytest.mark.parametrize("step", ["phase", "call", "last"])
def test_an_answer_after_a_step_that_has_failed(flows: Flows, step: str, completable: bool) -> None:
    def refuse(flow: Flow) -> Any:
        try:
            if step == "call":
                flow.external("book", lambda key: int("none"), attempts=1, transient=(ValueError,))
            if step == "last":
                with flow.last():
                    raise LookupError("nothing is left")
            flow.phase("book", lambda: int("none"))
        except (LookupError, ValueError, ExternalUnavailable):
            return "sold out"

    asked = request(completable=completable)
    assert [flows.run(asked, refuse).value for _ in range(2)] == ["sold out"] * 2
    assert [row.is_finished for row in rows()] == [True]


@pytest.mark.parametrize("completable", [True, False], ids=["stored", "by its first commit"])
def test_a_last_transaction_that_is_refused(flows: Flows, completable: bool) -> None:
    """Nothing of it is stored, and its answer is not either: the same again is done."""
    seats = ["taken", "free"]

    def book(flow: Flow) -> None:
        with flow.last() as end:
            Ride(id=seats.pop(0), user_id=flow.user_id).put()
            end.respond("booked")

    with userlock.global_lock("ann"):
        Ride(id="taken", user_id="ann").put()
    asked = request(completable=completable)
    with pytest.raises(EntityExistsError):
        flows.run(asked, book)
    assert [row.is_finished for row in rows()] == [False]
    assert not flows.run(asked, book).replayed
    assert len(rides()) == 2


def test_a_function(flows: Flows) -> None:
    ran = []

    @flows.function
    def refund(flow: Flow, cents: int) -> dict[str, int]:
        ran.append(cents)
        return {"refunded": cents}

    for _ in range(2):
        assert refund("ann", "payment-1234-refund", cents=500) == {"refunded": 500}
    assert ran == [500]
    with pytest.raises(IdempotencyKeyReused):
        refund("ann", "payment-1234-refund", cents=501)
