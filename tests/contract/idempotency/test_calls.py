"""Calls of other services: without the user's lock, and no longer than they may take."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from userlock.errors import ExternalUnavailable, LockTimeout, RequestRunning
from userlock.idempotency import Flows, Request
from userlock.stores import MemoryStore

KEY = "payment-1234-of-november"
#: The longest wait for another thread, in seconds: none decides by it.
PATIENCE = 60


class Provider:
    """A provider whose replies are waited for."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.reply = threading.Event()
        self.keys: list[str] = []

    def charge(self, key: str) -> int:
        self.keys.append(key)
        self.asked.release()
        assert self.reply.wait(PATIENCE)
        return 7


class Till:
    """Flows of several processes, by real time.

    Attributes:
        step: in which the provider is asked: a "call" or a "phase".
    """

    def __init__(self, client: ndb.Client) -> None:
        self.client = client
        self.service = userlock.LockService(MemoryStore())
        self.provider = Provider()
        self.pool = ThreadPoolExecutor(8)
        self.step = "call"

    def pay(self, *, refuse: bool = False, wait_timeout: float = PATIENCE) -> Any:
        """Pay, in a process of its own."""
        flows = Flows(client=self.client, service=self.service)

        def serve(flow: Any) -> int:
            if self.step == "bug":
                return int(1 / 0)
            if self.step == "phase":
                return int(flow.phase("charge", lambda: self.provider.charge("no key")))
            charged: int = flow.external("charge", self.provider.charge)
            holder = self.service.holder("ann")
            assert holder is not None, "it is taken again"
            return charged

        with flows.context():
            request = Request("ann", KEY, "pay")
            return flows.run(request, serve, refuse=refuse, wait_timeout=wait_timeout)

    def begin(self) -> Future[Any]:
        """Begin to pay in a thread; return when the provider is asked."""
        paying = self.pool.submit(self.pay)
        assert self.provider.asked.acquire(timeout=PATIENCE)
        return paying


@pytest.fixture
def till(ndb_client: ndb.Client) -> Iterator[Till]:
    till = Till(ndb_client)
    yield till
    till.provider.reply.set()
    till.pool.shutdown()


def test_other_requests_of_the_user_pass(till: Till) -> None:
    paying = till.begin()
    with userlock.scope(till.service), userlock.global_lock("ann", wait_timeout=0) as lock:
        assert not lock.degraded
    till.provider.reply.set()
    assert paying.result(PATIENCE).value == 7
    assert till.service.holder("ann") is None


def test_a_lock_of_the_code_around_is_kept(till: Till) -> None:
    """It may have read entities under it. Shows that the test above would notice."""

    def pay_under_a_lock() -> Any:
        with userlock.scope(till.service), userlock.global_lock("ann"):
            return till.pay()

    paying = till.pool.submit(pay_under_a_lock)
    assert till.provider.asked.acquire(timeout=PATIENCE)
    with userlock.scope(till.service), pytest.raises(LockTimeout):
        userlock.acquire_lock("ann", wait_timeout=0)
    till.provider.reply.set()
    assert paying.result(PATIENCE).value == 7


def test_the_same_request_waits_and_gets_the_answer(till: Till) -> None:
    paying = till.begin()
    again = till.pool.submit(till.pay)
    with userlock.scope(till.service):
        while not userlock.waiters(_call_of(till)):
            pass  # until it waits for the call
    till.provider.reply.set()
    assert paying.result(PATIENCE).value == again.result(PATIENCE).value == 7
    assert again.result().replayed
    assert len(till.provider.keys) == 1


@pytest.mark.parametrize(
    ("step", "how"),
    [("call", {"refuse": True}), ("call", {"wait_timeout": 0}), ("phase", {"refuse": True})],
)
def test_the_same_request_may_be_refused(till: Till, step: str, how: dict[str, Any]) -> None:
    till.step = step
    paying = till.begin()
    with pytest.raises(RequestRunning) as refused:
        till.pay(**how)
    assert refused.value.retry_after == 1
    till.provider.reply.set()
    paying.result(PATIENCE)
    assert till.pay(**how).replayed
    assert len(till.provider.keys) == 1


def test_a_request_without_an_attempt_is_not_said_to_run(till: Till) -> None:
    """It waits for another request of the user, as if it was sent for the first time."""
    till.provider.reply.set()
    till.step = "bug"
    with pytest.raises(ZeroDivisionError):
        till.pay(refuse=True)
    till.step = "phase"
    with userlock.scope(till.service), userlock.global_lock("ann"):
        again = till.pool.submit(till.pay, refuse=True)
        while not again.done() and not userlock.waiters("ann"):
            pass
    assert again.result(PATIENCE).value == 7


def test_a_call_whose_process_has_ended_is_made_again(till: Till) -> None:
    """Its lock has gone: the row alone tells of it. By the same key."""
    paying = till.begin()
    store = till.service.store
    assert isinstance(store, MemoryStore)
    store.forget_everything()
    again = till.pool.submit(till.pay)
    assert till.provider.asked.acquire(timeout=PATIENCE)
    till.provider.reply.set()
    assert again.result(PATIENCE).value == 7
    with pytest.raises(userlock.FlowTakenOver):
        paying.result(PATIENCE)
    assert len(set(till.provider.keys)) == 1


def _call_of(till: Till) -> str:
    store = till.service.store
    assert isinstance(store, MemoryStore)
    (found,) = [each for each in store.lock_ids() if "userlock.call" in each]
    return found


# --- time-outs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0.05}, {"timeout": 0.05, "transient": (LookupError,)}, {}],
    ids=["limited", "errors of another client", "the control"],
)
def test_a_call_that_hangs_fails_for_now(till: Till, options: dict[str, Any]) -> None:
    flows = Flows(client=till.client, service=till.service)
    timeout = options.get("timeout")

    def serve(flow: Any) -> Any:
        return flow.external("charge", till.provider.charge, attempts=2, **options)

    if timeout is None:
        till.provider.reply.set()
    with flows.context():
        if timeout is None:
            assert flows.run(Request("ann", KEY, "pay"), serve).value == 7
            return
        with pytest.raises(ExternalUnavailable):
            flows.run(Request("ann", KEY, "pay"), serve)
        assert len(till.provider.keys) == 2
        till.provider.reply.set()
        assert flows.run(Request("ann", KEY, "pay"), serve).value == 7
    assert len(set(till.provider.keys)) == 1


def test_an_alarm_is_no_time_out_of_the_call(till: Till) -> None:
    """Its error is the caller's, and the service is not asked again."""
    flows = Flows(client=till.client, service=till.service)

    def alarm(*_: object) -> None:
        raise TimeoutError("the alarm")

    def charge(key: str) -> int:
        os.kill(os.getpid(), signal.SIGUSR1)  # handled in the main thread, which waits
        return till.provider.charge(key)

    former = signal.signal(signal.SIGUSR1, alarm)
    try:
        with flows.context(), pytest.raises(TimeoutError, match="the alarm"):
            flows.run(Request("ann", KEY, "pay"), lambda flow: flow.external("charge", charge))
    finally:
        signal.signal(signal.SIGUSR1, former)
        till.provider.reply.set()
    assert till.provider.asked.acquire(timeout=PATIENCE)
    assert len(till.provider.keys) == 1


@pytest.mark.parametrize("timeout", [0, -1, True, "5", float("nan"), float("inf"), None])
def test_no_time(till: Till, timeout: Any) -> None:
    flows = Flows(client=till.client, service=till.service)
    call: Callable[[str], int] = lambda key: 1  # noqa: E731
    with flows.context(), pytest.raises((TypeError, ValueError), match="timeout must be"):
        flows.run(
            Request("ann", KEY, "pay"),
            lambda flow: flow.external("charge", call, timeout=timeout),
        )
