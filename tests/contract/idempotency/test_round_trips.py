"""The cost of a key: one look-up and one commit; of a replay one look-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.idempotency.conftest import request
from tests.contract.ndb.servers import Wire
from userlock.idempotency import Flow, Flows
from userlock.ndb import capabilities


class Counted(userlock.UserModel):
    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)


def change() -> int:
    counted = Counted.get_by_id("ann") or Counted(id="ann")
    counted.points += 1
    counted.put()
    return int(counted.points)


def answered(flow: Flow) -> None:
    with flow.last() as end:
        end.respond({"points": change()})


@pytest.fixture
def wire(ndb_client: ndb.Client) -> Iterator[Wire]:
    """Provide the RPCs. The server has been asked already whether it honours versions."""
    capabilities.honours_base_version(ndb_client)
    stub = ndb_client.stub
    yield Wire(ndb_client)
    ndb_client.stub = stub


def counted(wire: Wire, work: Callable[[], Any]) -> list[str]:
    before = len(wire.rpcs)
    work()
    return sorted(wire.names[before:])


def bare() -> None:
    """Handle the request without a key, under the user's lock."""
    with userlock.scope(), userlock.global_lock("ann"):
        ndb.transaction(change)


def test_one_look_up_and_one_commit_more(flows: Flows, wire: Wire) -> None:
    """The token is looked up with the handler's own first look-up."""
    without = counted(wire, bare)
    first = counted(wire, lambda: flows.run(request(), answered))
    assert first == sorted([*without, "lookup", "commit"])
    assert counted(wire, lambda: flows.run(request(), answered)) == ["lookup"]


def test_a_call_and_an_answer_are_a_commit_each(flows: Flows, wire: Wire) -> None:
    """One before the call, one after it, and the answer: each a put, fenced by its version."""

    def calls(flow: Flow) -> str:
        paid: str = flow.external("charge", lambda key: "paid")
        return paid

    assert counted(wire, lambda: flows.run(request(), calls)) == [*["commit"] * 4, "lookup"]


def test_a_phase_without_a_read_is_one_commit(flows: Flows, wire: Wire) -> None:
    """It inserts the row, so a second copy of it would be refused: it needs no begin."""

    def phases(flow: Flow) -> int:
        done: int = flow.phase("change", lambda: 1)
        return done

    run = request()._replace(completable=False)
    assert counted(wire, lambda: flows.run(run, phases)) == [*["commit"] * 2, "lookup"]


def test_a_phase_looks_up_with_its_function(flows: Flows, wire: Wire) -> None:
    without = counted(wire, bare)

    def phases(flow: Flow) -> int:
        done: int = flow.phase("change", change)
        return done

    rpcs = counted(wire, lambda: flows.run(request(), phases))
    assert rpcs == sorted([*without, "lookup", *["commit"] * 2])
