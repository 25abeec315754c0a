"""The cost of a key: one look-up and one commit; of a replay one look-up."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.idempotency.conftest import KEY, request
from tests.contract.ndb.servers import Wire
from userlock.idempotency import Answer, Flow, Flows
from userlock.ndb import capabilities
from userlock.stores import MemoryStore

MANY = 64


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


def test_a_phase_looks_up_with_its_function(flows: Flows, wire: Wire) -> None:
    without = counted(wire, bare)

    def phases(flow: Flow) -> int:
        done: int = flow.phase("change", change)
        return done

    rpcs = counted(wire, lambda: flows.run(request(), phases))
    assert rpcs == sorted([*without, "lookup", *["commit"] * 2])


# --- many at once ---------------------------------------------------------------------------


def test_many_at_once_cost_a_run_and_their_replays(ndb_client: ndb.Client, wire: Wire) -> None:
    """Each that waits looks up before and after, no more; and all take about as long as in turn.

    Ten times as long is allowed, as threads share the interpreter and the machine is busy.
    """
    shared = userlock.LockService(MemoryStore())
    flows = Flows()
    answers: list[Answer] = []

    def ask(key: str) -> Answer:
        with ndb_client.context(cache_policy=False), userlock.scope(shared):
            return flows.run(request(key=key), answered, wait_timeout=60)

    def timed(key: str) -> float:
        began = time.monotonic()
        ask(key)
        return time.monotonic() - began

    run = timed(f"{KEY}-1")
    replays = [timed(f"{KEY}-1") for _ in range(MANY // 2)]
    alone = counted(wire, lambda: ask(f"{KEY}-2"))
    before = len(wire.rpcs)
    threads = [
        threading.Thread(target=lambda: answers.append(ask(f"{KEY}-3"))) for _ in range(MANY)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    took = time.monotonic() - began
    names = wire.names[before:]
    replays += [timed(f"{KEY}-1") for _ in range(MANY // 2)]
    run = max(run, timed(f"{KEY}-4"))
    assert len(answers) == MANY
    assert sum(not each.replayed for each in answers) == 1
    assert len({(each.status, each.headers, each.body) for each in answers}) == 1
    # A thread whose first look-up is just too early meets the row, and is told by its commit.
    assert names.count("commit") <= 2 * alone.count("commit")
    assert names.count("lookup") <= 2 * (alone.count("lookup") + MANY)
    assert took < 10 * (run + MANY * statistics.fmean(replays))
