"""The simulated lock: who gets it when, and what it costs."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from tools.traffic.line import Line, Served
from tools.traffic.people import Arrival
from tools.traffic.profile import Profile
from userlock.lock.policy import LockPolicy, Polling
from userlock.lock.queue import Look

#: Round trips that take next to nothing, so that times can be told by renewals.
QUICK = dataclasses.replace(Profile(), round_trip=1e-6)
SOON = 0.001


def every(seconds: float) -> Line:
    """A lock at which everybody looks that often; people first, behind them a little less."""
    return Line(QUICK, Random(1), when_to_look=lambda look, polling: seconds)


def person(at: float, seconds: float) -> Arrival:
    return Arrival(at, seconds)


def batch(at: float, seconds: float, steps: int = 1) -> Arrival:
    return Arrival(at, seconds, steps, batch=True)


def served(line: Line, *arrivals: Arrival) -> list[Served]:
    """In the order in which they had asked."""
    return sorted(line.serve(sorted(arrivals)), key=lambda one: one.at)


def test_who_meets_nobody_pays_two_operations_and_waits_for_a_round_trip() -> None:
    line = Line(Profile(round_trip=0.001), Random(1))
    (one, other) = served(line, person(0.0, 0.1), person(0.2, 0.1))
    assert (one.waited, one.refused, one.granted, one.operations) == (0.001, False, True, 2)
    assert other.operations == 2
    assert line.record_seconds == pytest.approx(0.202)


def test_two_who_meet_counted_by_hand() -> None:
    holder, waiter = served(every(0.3), person(0.0, 1.0), person(0.5, 1.0))
    # Create; a remove that is refused, append and read.
    assert (holder.refused, holder.operations) == (False, 4)
    # Refused at 0.5; looks at 0.8 and 1.1, and takes it then.
    assert waiter.waited == pytest.approx(0.6, abs=SOON)
    # Create, append and read, two looks, swap; append, read and remove.
    assert (waiter.refused, waiter.operations) == (True, 9)


def test_a_remove_is_not_refused_to_who_was_alone_until_it() -> None:
    one, other = served(every(0.1), person(0.0, 1.0), person(1.0 + 1e-5, 1.0))
    assert (one.operations, other.operations) == (2, 2)


def test_first_come_first_served() -> None:
    waits = [
        one.waited + one.at
        for one in served(every(0.01), *(person(0.1 * number, 1.0) for number in range(6)))
    ]
    assert waits == sorted(waits)
    assert waits == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], abs=0.1)


def test_batch_comes_after_people_who_came_later() -> None:
    _, nightly, late = served(every(0.01), person(0.0, 1.0), batch(0.1, 1.0), person(0.5, 1.0))
    assert late.waited == pytest.approx(0.5, abs=0.02)
    assert nightly.waited == pytest.approx(1.9, abs=0.03)
    # The control: a person in its place would have been first.
    _, first, _ = served(every(0.01), person(0.0, 1.0), person(0.1, 1.0), person(0.5, 1.0))
    assert first.waited == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(("ages_after", "granted"), [(5.0, True), (None, False)])
def test_batch_ages(ages_after: float | None, *, granted: bool) -> None:
    policy = LockPolicy()
    policy = dataclasses.replace(
        policy, batch=dataclasses.replace(policy.batch, ages_after=ages_after, wait_timeout=20.0)
    )
    line = Line(QUICK, Random(1), policy=policy, when_to_look=lambda look, polling: 0.01)
    people = [person(0.9 * number, 1.0) for number in range(40)]
    nightly = next(one for one in served(line, batch(0.5, 1.0), *people) if one.batch)
    assert nightly.granted is granted


def test_who_waits_too_long_gives_up_and_is_not_served() -> None:
    slow, hasty, later = served(every(0.1), person(0.0, 15.0), person(1.0, 1.0), person(6.0, 1.0))
    assert slow.granted
    assert not hasty.granted
    assert hasty.waited == pytest.approx(LockPolicy().interactive.wait_timeout, abs=0.01)
    assert later.granted
    assert later.waited == pytest.approx(9.0, abs=0.11)


@pytest.mark.parametrize(("steps", "yields", "waited"), [(3, 1, 0.5), (1, 0, 2.5)])
def test_the_sweep_lets_people_pass_between_its_steps(
    steps: int, yields: int, waited: float
) -> None:
    nightly, late = served(every(0.01), batch(0.0, 3.0, steps), person(0.5, 1.0))
    assert nightly.yields == yields
    assert late.waited == pytest.approx(waited, abs=0.05)
    assert nightly.seconds == pytest.approx(4.0 if yields else 3.0, abs=0.05)


def test_nobody_is_forgotten_and_nobody_is_in_the_way_twice() -> None:
    random = Random(7)
    arrivals = [
        Arrival(random.uniform(0, 60), random.expovariate(20), random.randint(1, 3), batch=yes)
        for yes in (True, False)
        for _ in range(300)
    ]
    line = Line(Profile(), Random(1))
    found = served(line, *arrivals)
    assert [one.at for one in found] == sorted(arrival.at for arrival in arrivals)
    assert all(one.granted for one in found)
    # Sections do not overlap, so the record was there for as long as all of them together.
    assert line.record_seconds >= sum(arrival.seconds for arrival in arrivals)
    assert not any(one.refused for one in found if one.operations <= 4)


def queue(load: float, count: int) -> list[Arrival]:
    """People who come at random, for a second each."""
    random, at, arrivals = Random(11), 0.0, []
    for _ in range(count):
        at += random.expovariate(load)
        arrivals.append(person(at, 1.0))
    return arrivals


def lindley(arrivals: list[Arrival]) -> float:
    """The mean wait of these arrivals, when each is served as soon as the one before has left."""
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
    line = Line(QUICK, Random(1), policy=patient(), when_to_look=exactly)
    arrivals = queue(load, 30_000)
    found = line.serve(arrivals)
    mean = sum(one.waited for one in found) / len(found)
    assert mean == pytest.approx(lindley(arrivals), rel=0.001)
    assert mean == pytest.approx(load / (2 * (1 - load)), rel=0.1)  # of arrivals without end
    assert sum(one.refused for one in found) / len(found) == pytest.approx(load, rel=0.02)


def test_the_library_hands_on_in_a_small_part_of_a_section() -> None:
    """The same queue with the looks that the library takes: hardly more than the closed form."""
    load = 0.6
    profile = dataclasses.replace(
        QUICK, section=dataclasses.replace(QUICK.section, median=1.0, sigma=0.0)
    )
    found = Line(profile, Random(1), policy=patient()).serve(queue(load, 3_000))
    seldom = Line(profile, Random(1), policy=patient(), when_to_look=lambda look, polling: 1.0)
    mean = sum(one.waited for one in found) / len(found)
    best = load / (2 * (1 - load))
    assert 0.9 * best < mean < 1.3 * best
    # The control: those who ask once a second, as in 2016, wait for much longer.
    slow = seldom.serve(queue(load, 3_000))
    assert sum(one.waited for one in slow) / len(slow) > 2 * mean
