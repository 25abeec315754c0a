"""A deadlock of two processes over a real server: the younger one gives way at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import userlock
from tests.faults.conftest import UrlOf
from tests.waiting import wait_until
from userlock import DeadlockDetected, LockService, LockTimeout

#: The time that ends the younger one's wait without the detection.
WAIT_SECONDS = 2.0


def taken_in_turn(service: LockService, first: str, second: str, wait_timeout: float) -> None:
    """Take two locks, as a process of its own; the second when another one has it."""
    with userlock.scope(service), userlock.global_lock(first):
        wait_until(lambda: service.holder(second))
        if first == "b":  # the younger one
            wait_until(lambda: service.waiters("b"))
        with userlock.global_lock(second, wait_timeout=wait_timeout):
            pass


@pytest.mark.parametrize("detected", [True, False])
@pytest.mark.parametrize("kind", ["memcached", "redis"])
def test_the_younger_one_gets_the_error_and_the_other_its_lock(
    url_of: UrlOf, monkeypatch: pytest.MonkeyPatch, kind: str, detected: bool
) -> None:
    """Without the detection, the negative control, only its time-out ends the wait."""
    if not detected:
        monkeypatch.setattr("userlock.lock.scope._Holding", lambda *_: ())
    services = [LockService.from_url(url_of(kind), outage="fail") for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        older = threads.submit(taken_in_turn, services[0], "a", "b", 30.0)
        seconds = 30.0 if detected else WAIT_SECONDS
        younger = threads.submit(taken_in_turn, services[1], "b", "a", seconds)
        with pytest.raises(DeadlockDetected if detected else LockTimeout):
            younger.result()
        older.result()
    for service in services:
        assert (service.holder("a"), service.holder("b")) == (None, None)
        service.close()
