"""A dead or hanging store costs a process one timeout now and then."""

from __future__ import annotations

from userlock.lock.breaker import CircuitBreaker
from userlock.testing import ManualClock


def test_a_costly_failure_opens_it_for_a_second(clock: ManualClock) -> None:
    breaker = CircuitBreaker(clock)
    assert breaker.allows()
    breaker.failed(cost_seconds=0.4, reason="timed out")
    assert breaker.reason == "timed out"
    clock.advance(0.99)
    assert not breaker.allows()
    clock.advance(0.02)
    assert breaker.allows()


def test_a_cheap_failure_hardly_opens_it(clock: ManualClock) -> None:
    breaker = CircuitBreaker(clock)
    breaker.failed(cost_seconds=0.0005, reason="refused")
    clock.advance(0.006)
    assert breaker.allows()


def test_one_caller_probes_and_the_others_stay_out(clock: ManualClock) -> None:
    breaker = CircuitBreaker(clock)
    breaker.failed(cost_seconds=1, reason="timed out")
    clock.advance(1.1)
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.succeeded()
    assert breaker.allows()


def test_a_probe_that_never_reports_is_replaced(clock: ManualClock) -> None:
    breaker = CircuitBreaker(clock)
    breaker.failed(cost_seconds=1, reason="timed out")
    clock.advance(1.1)
    assert breaker.allows()
    clock.advance(1.1)
    assert breaker.allows()
