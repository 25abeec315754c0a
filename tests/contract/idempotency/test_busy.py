"""The same request at once, and attempts that take over."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.idempotency.conftest import KEY, request
from userlock.errors import FlowTakenOver, RequestRunning
from userlock.idempotency import Answer, Flow, Flows
from userlock.lock.service import LockService
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

MANY = 24


class Held:
    """A function that waits in the middle until it may go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.runs = 0

    def __call__(self, flow: Flow) -> dict[str, int]:
        self.runs += 1
        self.reached.set()
        assert self.go_on.wait(30)
        return {"attempt": flow.attempt}


@pytest.fixture
def real(ndb_client: ndb.Client) -> Iterator[Callable[[Callable[[], Any]], threading.Thread]]:
    """Provide a function that runs another one in a thread, as a request of its own."""
    service = LockService(MemoryStore())
    threads = []

    def start(work: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            with ndb_client.context(cache_policy=False), userlock.scope(service):
                work()

        thread = threading.Thread(target=run)
        thread.start()
        threads.append(thread)
        return thread

    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_many_equal_requests_run_once(real: Any) -> None:
    flows, held = Flows(), Held()
    answers: list[Answer] = []
    first = real(lambda: answers.append(flows.run(request(), held, wait_timeout=30)))
    assert held.reached.wait(30)
    others = [
        real(lambda: answers.append(flows.run(request(), held, wait_timeout=30)))
        for _ in range(MANY - 1)
    ]
    held.go_on.set()
    for thread in (first, *others):
        thread.join(60)
    assert held.runs == 1
    assert len(answers) == MANY
    assert sum(not each.replayed for each in answers) == 1
    assert {(each.status, each.body) for each in answers} == {(200, b'{"attempt":1}')}


def test_a_running_request_is_refused(real: Any) -> None:
    flows, held = Flows(), Held()
    found: list[Any] = []

    def again() -> None:
        try:
            found.append(flows.run(request(), held, refuse=True))
        except RequestRunning as error:
            found.append(error.retry_after)

    first = real(lambda: flows.run(request(), held))
    assert held.reached.wait(30)
    real(again).join(30)
    assert found == [1]
    held.go_on.set()
    first.join(30)
    real(again).join(30)
    assert found[1].replayed


def test_without_the_lock_an_attempt_is_waited_for(
    flows: Flows, clock: ManualClock, store: MemoryStore
) -> None:
    """Both leases are degraded: only the row tells that an attempt may be running."""
    store.go_down()
    seen: list[Any] = []

    def slow(flow: Flow) -> str:
        if flow.attempt == 1:
            for seconds in (1, 100):
                clock.advance(seconds)
                with userlock.scope():
                    try:
                        seen.append(flows.run(request(), slow).value)
                    except RequestRunning as error:
                        seen.append(error.retry_after > 30)
        return f"attempt {flow.attempt}"

    with contextlib.suppress(FlowTakenOver):
        flows.run(request(), slow)
    assert seen == [True, "attempt 2"]
    assert flows.run(request(key=KEY), slow).value == "attempt 2"
