"""Flows that no other attempt could repeat are refused, and leave nothing wrong behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

from tests.contract.idempotency.conftest import CardDeclined, Provider, request, rows
from userlock.errors import ConfigurationError, ExternalUnavailable
from userlock.idempotency import Answer, Flow, Flows


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


def test_statuses_that_are_not_kept(flows: Flows, provider: Provider) -> None:
    statuses: list[Any] = [199, 401, 403, 429, 500, 503, 999, 0, -1, True, "200"]
    for status in statuses:

        def finishes(flow: Flow, status: Any = status) -> None:
            flow.finish(Answer(status, (), b""))

        def responds(flow: Flow, status: Any = status) -> None:
            with flow.last() as end:
                end.respond("text", status)

        def refused(flow: Flow, status: Any = status) -> Any:
            return flow.external("c", provider.charge, final={CardDeclined: status})

        for function in (finishes, responds, refused):
            with pytest.raises(ValueError, match="from 200 to 499"):
                flows.run(request(), function)
    assert provider.asked == 0
    assert not rows()[0].is_finished


def test_a_final_error_of_any_length(flows: Flows, provider: Provider) -> None:
    provider.trouble = CardDeclined("x" * 1_000_000)

    def pay(flow: Flow) -> Any:
        return flow.external("charge", provider.charge, final={CardDeclined: 402}, detail=True)

    assert flows.run(request(), pay).status == 402
    assert flows.run(request(), pay).replayed
    assert provider.asked == 1


def test_a_flow_within_a_transaction_is_refused_at_once(flows: Flows) -> None:
    ran: list[int] = []
    with pytest.raises(RuntimeError, match="is called in one"):
        ndb.transaction(lambda: flows.run(request(), lambda flow: ran.append(1)))
    assert ran == []
    assert rows() == []
