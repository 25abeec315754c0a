"""The simulated lock: the order of grants, and their costs."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from tools.traffic.lock import Served, SimulatedLock
from tools.traffic.profile import Profile
from tools.traffic.users import Arrival
from userlock.lock.policy import LockPolicy, Polling
from userlock.lock.queue import Look

#: Almost instant round trips, so that times follow from polls alone.
QUICK = dataclasses.replace(Profile(), round_trip=1e-6)
SOON = 0.001


def every(seconds: float) -> SimulatedLock:
    """Return a lock with this poll delay; later positions poll slightly more often."""
    return SimulatedLock(QUICK, Random(1), poll_delay=lambda look, polling: seconds)


def request(at: float, seconds: float) -> Arrival:
    return Arrival(at, seconds)


def batch(at: float, seconds: float, steps: int = 1) -> Arrival:
    return Arrival(at, seconds, steps, batch=True)


def served(lock: SimulatedLock, *arrivals: Arrival) -> list[Served]:
    """Return the outcomes in the order of the arrivals."""
    return sorted(lock.serve(sorted(arrivals)), key=lambda one: one.at)


def test_without_contention_two_operations_and_one_round_trip() -> None:
    lock = SimulatedLock(Profile(round_trip=0.001), Random(1))
    (one, other) = served(lock, request(0.0, 0.1), request(0.2, 0.1))
    assert (one.waited, one.refused, one.granted, one.operations) == (0.001, False, True, 2)
    assert other.operations == 2
    assert lock.record_seconds == pytest.approx(0.202)


def test_two_contending_requests_counted_by_hand() -> None:
    holder, waiter = served(every(0.3), request(0.0, 1.0), request(0.5, 1.0))
    # Create; a refused remove, append and read.
    assert (holder.refused, holder.operations) == (False, 4)
    # Refused at 0.5; polls at 0.8 and 1.1, and takes it then.
    assert waiter.waited == pytest.approx(0.6, abs=SOON)
    # Create, append and read, two polls, swap; append, read and remove.
    assert (waiter.refused, waiter.operations) == (True, 9)


def test_a_remove_succeeds_without_waiters() -> None:
    one, other = served(every(0.1), request(0.0, 1.0), request(1.0 + 1e-5, 1.0))
    assert (one.operations, other.operations) == (2, 2)


def test_requests_are_served_in_order() -> None:
    waits = [
        one.waited + one.at
        for one in served(every(0.01), *(request(0.1 * number, 1.0) for number in range(6)))
    ]
    assert waits == sorted(waits)
    assert waits == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], abs=0.1)


def test_batch_waits_behind_later_interactive_requests() -> None:
    _, nightly, late = served(every(0.01), request(0.0, 1.0), batch(0.1, 1.0), request(0.5, 1.0))
    assert late.waited == pytest.approx(0.5, abs=0.02)
    assert nightly.waited == pytest.approx(1.9, abs=0.03)
    # The control: an interactive request in its place would have been first.
    _, first, _ = served(every(0.01), request(0.0, 1.0), request(0.1, 1.0), request(0.5, 1.0))
    assert first.waited == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(("ages_after", "granted"), [(5.0, True), (None, False)])
def test_batch_ages(ages_after: float | None, *, granted: bool) -> None:
    policy = LockPolicy()
    policy = dataclasses.replace(
        policy, batch=dataclasses.replace(policy.batch, ages_after=ages_after, wait_timeout=20.0)
    )
    lock = SimulatedLock(QUICK, Random(1), policy=policy, poll_delay=lambda look, polling: 0.01)
    others = [request(0.9 * number, 1.0) for number in range(40)]
    nightly = next(one for one in served(lock, batch(0.5, 1.0), *others) if one.batch)
    assert nightly.granted is granted


def test_a_request_that_waits_too_long_times_out() -> None:
    slow, hasty, later = served(
        every(0.1), request(0.0, 15.0), request(1.0, 1.0), request(6.0, 1.0)
    )
    assert slow.granted
    assert not hasty.granted
    assert hasty.waited == pytest.approx(LockPolicy().interactive.wait_timeout, abs=0.01)
    assert later.granted
    assert later.waited == pytest.approx(9.0, abs=0.11)


@pytest.mark.parametrize(("steps", "yields", "waited"), [(3, 1, 0.5), (1, 0, 2.5)])
def test_the_sweep_yields_between_its_steps(steps: int, yields: int, waited: float) -> None:
    nightly, late = served(every(0.01), batch(0.0, 3.0, steps), request(0.5, 1.0))
    assert nightly.yields == yields
    assert late.waited == pytest.approx(waited, abs=0.05)
    assert nightly.seconds == pytest.approx(4.0 if yields else 3.0, abs=0.05)


def test_every_request_is_served_and_sections_never_overlap() -> None:
    random = Random(7)
    arrivals = [
        Arrival(random.uniform(0, 60), random.expovariate(20), random.randint(1, 3), batch=yes)
        for yes in (True, False)
        for _ in range(300)
    ]
    lock = SimulatedLock(Profile(), Random(1))
    found = served(lock, *arrivals)
    assert [one.at for one in found] == sorted(arrival.at for arrival in arrivals)
    assert all(one.granted for one in found)
    # Sections do not overlap, so the record existed for at least their total time.
    assert lock.record_seconds >= sum(arrival.seconds for arrival in arrivals)
    assert not any(one.refused for one in found if one.operations <= 4)


def queue(load: float, count: int) -> list[Arrival]:
    """Return interactive requests at random times, for a second each."""
    random, at, arrivals = Random(11), 0.0, []
    for _ in range(count):
        at += random.expovariate(load)
        arrivals.append(request(at, 1.0))
    return arrivals


def lindley(arrivals: list[Arrival]) -> float:
    """Return the mean wait if each arrival is served as soon as the previous one has left."""
    total, free_at = 0.0, 0.0
    for arrival in arrivals:
        begins = max(arrival.at, free_at)
        total += begins - arrival.at
        free_at = begins + arrival.seconds
    return total / len(arrivals)


def patient() -> LockPolicy:
    policy = LockPolicy()
    return dataclasses.replace(
        policy, interactive=dataclasses.replace(policy.interactive, wait_timeout=3600.0)
    )


def test_the_wait_of_a_queue_with_equal_sections() -> None:
    """M/D/1: with load r the mean wait is r / 2(1 - r) sections (Pollaczek and Khinchine)."""

    def exactly(look: Look, polling: Polling) -> float:
        return max(1.0 - look.held, 0.0) + 0.9 * look.position + 1e-6

    load = 0.6
    lock = SimulatedLock(QUICK, Random(1), policy=patient(), poll_delay=exactly)
    arrivals = queue(load, 30_000)
    found = lock.serve(arrivals)
    mean = sum(one.waited for one in found) / len(found)
    assert mean == pytest.approx(lindley(arrivals), rel=0.001)
    assert mean == pytest.approx(load / (2 * (1 - load)), rel=0.1)  # infinitely many arrivals
    assert sum(one.refused for one in found) / len(found) == pytest.approx(load, rel=0.02)


def test_the_library_hands_on_in_a_small_part_of_a_section() -> None:
    """With the library's own polls, the waits of the same queue are hardly longer."""
    load = 0.6
    profile = dataclasses.replace(
        QUICK, section=dataclasses.replace(QUICK.section, median=1.0, sigma=0.0)
    )
    found = SimulatedLock(profile, Random(1), policy=patient()).serve(queue(load, 3_000))
    seldom = SimulatedLock(
        profile, Random(1), policy=patient(), poll_delay=lambda look, polling: 1.0
    )
    mean = sum(one.waited for one in found) / len(found)
    best = load / (2 * (1 - load))
    assert 0.9 * best < mean < 1.3 * best
    # The control: polling once a second, as in 2016, leads to much longer waits.
    slow = seldom.serve(queue(load, 3_000))
    assert sum(one.waited for one in slow) / len(slow) > 2 * mean
