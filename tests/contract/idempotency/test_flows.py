"""A request runs once, and its answer is given again. Flows that cannot be repeated are refused."""

from __future__ import annotations

import base64
import contextvars
import functools
import random
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from google.api_core.exceptions import Aborted
from google.cloud import ndb
from google.cloud.ndb.exceptions import ContextError

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
    ConfigurationError,
    EntityExistsError,
    ExternalUnavailable,
    FlowChanged,
    IdempotencyKeyRefused,
    IdempotencyKeyReused,
    NotStorable,
)
from userlock.idempotency import Answer, Flow, Flows
from userlock.idempotency.flow import End
from userlock.testing import ManualClock

DAY = 24 * 3600
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


def test_a_phase_that_fails_after_its_commit(flows: Flows) -> None:
    """It is done: the attempt gives the request back with all that is stored."""
    fails = [True]

    def fail() -> None:
        if fails:
            raise ArithmeticError(fails.pop())

    def begin() -> int:
        ndb.get_context().call_on_commit(fail)
        begun.append(1)
        return len(begun)

    begun: list[int] = []
    with pytest.raises(ArithmeticError):
        flows.run(request(), lambda flow: flow.phase("ride", begin))
    assert flows.run(request(), lambda flow: flow.phase("ride", begin)).value == 1


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


def test_an_answer_is_kept_for_a_day_and_an_unfinished_request_for_ever(
    flows: Flows, ride: Function, clock: ManualClock
) -> None:
    flows.run(request(), ride)
    with pytest.raises(ZeroDivisionError):
        flows.run(request("bob"), lambda flow: 1 / 0)
    for seconds, kept in ((0, True), (DAY - 1, True), (2, False)):
        clock.advance(seconds)
        flows.reap()
        assert {row.user for row in rows()} == ({"ann", "bob"} if kept else {"bob"})
        assert flows.run(request(), ride).replayed is kept
    assert len({each.charge for each in rides()}) == 2, "the key may be used for another charge"
    clock.advance(400 * DAY)
    flows.reap()
    assert [row.user for row in rows()] == ["bob"]


def ends_last(flow: Flow) -> None:
    with flow.last() as end:
        end.respond(1)


@pytest.mark.parametrize(
    "function",
    [
        ends_last,
        lambda flow: 1,
        lambda flow: flow.phase("ride", lambda: 1),
        lambda flow: flow.external("charge", lambda key: 1),
    ],
)
@pytest.mark.parametrize("how", [{}, {"refuse": True}])
@pytest.mark.parametrize("completable", [True, False])
def test_a_key_is_free_when_its_answer_is_no_longer_kept(
    flows: Flows, clock: ManualClock, function: Function, how: dict[str, Any], completable: bool
) -> None:
    """Also for another request, and before the answer is removed."""
    for day, to in enumerate(["home", "home", "work"]):
        clock.advance(DAY * bool(day) + 1)
        sent = request(completable=completable, params={"to": to})
        answer = flows.run(sent, function, **how)
        assert (answer.value, answer.replayed) == (1, False)
        assert flows.run(sent, function, **how).replayed


def test_an_attempt_changes_its_own_values_alone(flows: Flows, provider: Provider) -> None:
    """Not what is stored, and what another run of the function gets."""
    seen: list[Any] = []

    def buggy(flow: Flow) -> None:
        cart = flow.phase("cart", lambda: {"cents": 100})
        provider_of = flow.external("choose", lambda key, at: at.append(1) or at, provider=[0])
        bill = flow.external("bill", lambda key: [provider.charge(key)])
        seen.append([flow.params, cart, provider_of, bill])
        for each in (flow.params, cart):
            each["cents"] = each.get("cents", 0) + 10
        provider_of.append(2)
        bill.append("paid")
        flow.phase("later", lambda: 1)
        if len(seen) == 1:
            raise RuntimeError("a bug")
        with flow.last() as end:
            if len(seen) == 2:
                raise Aborted("a conflict")
            end.respond(1)

    sent = request(params={"to": "home"})
    with pytest.raises(RuntimeError):
        flows.run(sent, buggy)
    changed = [{"to": "home", "cents": 10}, {"cents": 110}, [0, 1, 2], ["charge-1", "paid"]]
    assert flows.run(sent, buggy).value == 1
    assert seen == [changed] * 3


def test_a_deploy_that_renames_a_view(flows: Flows, provider: Provider) -> None:
    def view(flow: Flow) -> str:
        return str(flow.external("charge", provider.charge))

    flows.register("walks", view)
    for flow, refused in (("walks", False), ("hikes", True)):  # of two hosts, say
        with pytest.raises(IdempotencyKeyReused) if refused else nullcontext():
            flows.run(request(method="POST", flow=flow, key="walk-7"), lambda flow: "walked")
    sent, renamed = request(method="POST"), request(method="POST", flow="walks")
    provider.trouble = RuntimeError("the process is replaced")
    for each in (sent, renamed):
        with pytest.raises(RuntimeError):
            flows.run(each, view)
    assert [each.flow for each in flows.unfinished(older_than=0)] == ["walks"]
    provider.trouble = None
    assert [flows.run(renamed, view).replayed for _ in range(2)] == [False, True]


def test_a_deploy_that_renames_a_phase(flows: Flows) -> None:
    def before(flow: Flow) -> None:
        flow.phase("ride", lambda: 1)
        raise RuntimeError("the process is replaced")

    with pytest.raises(RuntimeError):
        flows.run(request(), before)
    ran = []
    with pytest.raises(FlowChanged, match=r"'ride'.*'journey'"):
        flows.run(request(), lambda flow: flow.phase("journey", lambda: ran.append(1)))
    with pytest.raises(FlowChanged, match=r"phase 'ride' is stored, .* with the call 'ride'"):
        flows.run(request(), lambda flow: flow.external("ride", lambda key: ran.append(1)))
    with pytest.raises(FlowChanged, match=r"'ride'.*ends without it"):
        flows.run(request(), lambda flow: 7)
    assert ran == []


@pytest.mark.parametrize(
    "output",
    [
        *({1, 2}, object(), {"a": {3: 4}}, float("nan"), b"bytes"),
        pytest.param([10**5_000], id="digits"),
    ],
)
def test_outputs_that_cannot_be_stored(flows: Flows, output: object) -> None:
    with pytest.raises(NotStorable, match="cannot be stored"):
        flows.run(request(), lambda flow: flow.phase("ride", lambda: output))
    with pytest.raises(NotStorable, match="cannot be stored"):
        flows.run(request(key=KEY + "-2"), lambda flow: output)


def test_long_outputs_and_a_long_answer(flows: Flows) -> None:
    """They do not compress, and one entity would not have both."""
    text = base64.b85encode(random.Random(7).randbytes(704_000)).decode()

    def serve(flow: Flow) -> str:
        flow.phase("long", lambda: text)
        return text

    sent = request(params=text[:150_000])
    assert flows.run(sent, serve).value == flows.run(sent, serve).value == text
    (row,) = rows()
    assert (row.params, row.points) == (None, '[{"name":"long","kind":"phase","out":null}]')


def test_parameters_of_a_function_have_a_bound(flows: Flows) -> None:
    """They are stored beside outputs, which one row might not have together."""

    @flows.function
    def pay(flow: Flow, text: str) -> Any:
        return flow.phase("pay", lambda: len(text))

    room = 200_000 - len('{"text":""}')
    assert pay("ann", KEY, text="x" * room) == room
    with pytest.raises(NotStorable, match=r"parameters of .* 200,001 bytes.*pass their ids"):
        pay("ann", KEY + "-2", text="x" * (room + 1))


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
    assert [row.is_finished for row in rows()] == [False] * completable
    assert not flows.run(asked, book).replayed
    assert len(rides()) == 2


def test_a_function(flows: Flows) -> None:
    ran: list[int] = []

    def with_log(function: Any) -> Any:
        return functools.wraps(function)(lambda flow, *, cents: function(flow, ran, cents))

    @flows.function
    @with_log
    def refund(flow: Flow, ran: list[int], cents: int) -> dict[str, int]:
        ran.append(cents)
        return {"refunded": cents}

    with pytest.raises(TypeError, match="cent"):
        refund("ann", "payment-1234-refund", cent=500)  # a wrong call takes no key
    for _ in range(2):
        assert refund("ann", "payment-1234-refund", cents=500) == {"refunded": 500}
    assert ran == [500]
    with pytest.raises(IdempotencyKeyReused):
        refund("ann", "payment-1234-refund", cents=501)


# --- what no other attempt could repeat ----------------------------------------------------------


def unreachable(key: str) -> str:
    raise ConnectionError("reset")


@pytest.mark.parametrize(
    ("failed", "kind"), [("first", "call"), ("first", "phase"), ("last()", "phase")]
)
def test_no_step_comes_after_one_that_has_failed(
    flows: Flows, provider: Provider, failed: str, kind: str
) -> None:
    """Another attempt might reach the first service, and charge there as well."""

    def falls_back(flow: Flow) -> Any:
        try:
            if failed == "first":
                return flow.external("first", unreachable, attempts=1)
            with flow.last():
                raise CardDeclined("too poor")
        except (ExternalUnavailable, CardDeclined):
            if kind == "call":
                return flow.external("second", provider.charge)
            return flow.phase("second", lambda: 1)

    for _ in range(2):
        says = rf"'{re.escape(failed)}' has failed.*goes on with 'second'"
        with pytest.raises(RuntimeError, match=says):
            flows.run(request(), falls_back)
    assert provider.asked == 0
    (row,) = rows()
    assert not row.is_finished
    assert flows.run(request(), lambda flow: flow.external("first", provider.charge)).status == 200
    assert list(provider.charges.values()) == ["charge-1"]


@pytest.mark.parametrize(
    "option",
    [
        *({"attempts": wrong} for wrong in (0, 2.5, "3", True)),
        *({"transient": wrong} for wrong in (("x",), OSError, (7,))),
        *({"final": wrong} for wrong in ({"x": 402}, [CardDeclined], {CardDeclined: 500})),
        {"detail": "no"},
    ],
    ids=str,
)
def test_a_service_is_not_called_with_wrong_options(
    flows: Flows, provider: Provider, option: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError)):
        flows.run(request(), lambda flow: flow.external("charge", provider.charge, **option))
    assert provider.asked == 0


def test_a_provider_stays_what_was_chosen(flows: Flows) -> None:
    seen: list[Any] = []

    def call(key: str, provider: dict[str, int]) -> int:
        seen.append(dict(provider))
        provider["tries"] = len(seen)
        if len(seen) == 1:
            raise ConnectionError
        return 1

    flows.run(request(), lambda flow: flow.external("charge", call, provider={"a": 1}))
    assert seen == [{"a": 1}] * 2


@pytest.mark.parametrize("name", ["", None, 7])
def test_each_step_has_a_name(flows: Flows, provider: Provider, name: Any) -> None:
    with pytest.raises(ValueError, match="have a name"):
        flows.run(request(), lambda flow: flow.external(name, provider.charge))
    assert provider.asked == 0


def test_a_coroutine_is_refused(flows: Flows) -> None:
    async def later(flow: Flow) -> None:
        """Its answer cannot be stored."""

    with pytest.raises(ConfigurationError, match="cannot be stored"):
        flows.function(later)


@pytest.mark.parametrize("inner", ["phase", "external", "last"])
def test_no_step_is_within_a_call(flows: Flows, provider: Provider, inner: str) -> None:
    def nested(flow: Flow) -> Any:
        def call(key: str) -> Any:
            if inner == "phase":
                return flow.phase("inner", lambda: 1)
            if inner == "external":
                return flow.external("inner", provider.charge)
            with flow.last() as end:
                end.respond(1)
            return 1

        return flow.external("outer", call)

    with pytest.raises(RuntimeError, match="is within 'outer'"):
        flows.run(request(), nested)
    (row,) = rows()
    assert not row.is_finished
    assert flows.run(request(), lambda flow: flow.external("outer", provider.charge)).status == 200


AFTER: dict[str, Callable[[Flow], Any]] = {
    "a phase": lambda flow: flow.phase("after", lambda: 1),
    "a call": lambda flow: flow.external("after", lambda key: 1),
    "an error": lambda flow: 1 / 0,
}


@pytest.mark.parametrize("after", AFTER)
def test_the_client_gets_the_answer_whatever_comes_after_it(
    flows: Flows, caplog: pytest.LogCaptureFixture, after: str
) -> None:
    def goes_on(flow: Flow) -> None:
        with flow.last() as end:
            end.respond("done", 201)
        AFTER[after](flow)

    first, again = flows.run(request(), goes_on), flows.run(request(), goes_on)
    assert (first.status, first.body, first.replayed) == (201, b'"done"', False)
    assert (again.status, again.body, again.replayed) == (201, b'"done"', True)
    assert "has failed after its answer" in caplog.text


@pytest.mark.parametrize("status", [204, 205, 304])
def test_an_answer_without_a_body(flows: Flows, status: int) -> None:
    """uvicorn, for one, logs an error if a 204 has one, be it `null`."""

    def deletes(flow: Flow) -> None:
        with flow.last() as end:
            end.respond(None, status)

    answers = [flows.run(request(), deletes) for _ in range(2)]
    assert [(each.status, each.headers, each.body, each.value) for each in answers] == [
        (status, (), b"", None)
    ] * 2


def test_statuses_that_are_not_kept(flows: Flows, provider: Provider) -> None:
    statuses: list[Any] = [199, 401, 403, 429, 500, 503, 999, 0, -1, True, "200", 204, 205, 304]
    for status in statuses:
        bodiless = status in (204, 205, 304)

        def finishes(flow: Flow, status: Any = status) -> None:
            flow.finish(Answer(status, (), b""))

        def responds(flow: Flow, status: Any = status) -> None:
            with flow.last() as end:
                end.respond("text", status)

        def refused(flow: Flow, status: Any = status) -> Any:
            return flow.external("c", provider.charge, final={CardDeclined: status})

        for function in (finishes, responds, refused)[bodiless:]:
            with pytest.raises(ValueError, match="has no body" if bodiless else "from 200 to 499"):
                flows.run(request(), function)
    headers: Any = {"Location": "/x"}
    with pytest.raises(TypeError, match="tuple of"):
        flows.run(request(), lambda flow: Answer(201, headers, b""))
    with pytest.raises(ValueError, match=r"is a set\. To fix it: "):
        flows.run(request(), lambda flow: End().respond({1}))
    assert provider.asked == 0
    assert not rows()[0].is_finished


def test_a_final_error_of_any_length(flows: Flows, provider: Provider) -> None:
    provider.trouble = CardDeclined("x" * 1_000_000)

    def pay(flow: Flow) -> Any:
        return flow.external("charge", provider.charge, final={CardDeclined: 402}, detail=True)

    assert flows.run(request(), pay).status == 402
    assert flows.run(request(), pay).replayed
    assert provider.asked == 1


def test_a_flow_outside_of_a_context_is_refused_by_ndb(flows: Flows) -> None:
    with pytest.raises(ContextError):
        contextvars.Context().run(flows.run, request(), lambda flow: 1)


def test_a_flow_within_a_transaction_is_refused_at_once(flows: Flows) -> None:
    ran: list[int] = []
    with pytest.raises(RuntimeError, match="is called in one"):
        ndb.transaction(lambda: flows.run(request(), lambda flow: ran.append(1)))
    assert ran == []
    assert rows() == []
