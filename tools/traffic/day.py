"""All users' days: each of them, or a weighted sample.

The sample is stratified: users are sorted into strata by activity. Very active users are drawn more
often, since most requests are theirs. Each drawn user has a weight. Absent users are not drawn: the
sweep finds their locks free.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from tools.traffic.lock import Served, SimulatedLock
from tools.traffic.profile import Profile
from tools.traffic.tally import PART_SECONDS, PARTS, Tally
from tools.traffic.users import Users

#: The boundaries of the strata, as shares of the active users.
_EDGES = (0.0, 0.5, 0.8, 0.95, 0.99, 0.999, 1.0)
#: The number of parts of the sample. Their differences give the standard error.
_GROUPS = 20


class Sweep(NamedTuple):
    """The nightly job over all users.

    Attributes:
        users: number of users that it visits.
        workers: number of parallel workers.
        seconds: its duration without contention.
    """

    users: int
    workers: int
    seconds: float


class _Drawn(NamedTuple):
    """One user of the sample: activity, weight, and part of the sample."""

    activity: float
    weight: float
    group: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A day of a site.

    Attributes:
        profile: the assumptions.
        users: number of users.
        drawn: number of users whose days were simulated.
        sweep: the planned sweep.
        tally: the counts, or their estimates from the sample.
        parts: the same for each part of the sample; `tally` is their sum.
    """

    profile: Profile
    users: int
    drawn: int
    sweep: Sweep
    tally: Tally
    parts: list[Tally]

    def error(self, figure: Callable[[Tally], float]) -> float:
        """Return the standard error of a figure, from the parts' differences."""
        return statistics.stdev(map(figure, self.parts)) / math.sqrt(len(self.parts))

    @property
    def sampled(self) -> bool:
        """Return whether it is an estimate."""
        return self.drawn < round(self.users * self.profile.active_share)

    @property
    def sweep_seconds(self) -> float:
        """Return the duration of the sweep, with its waits."""
        between = self.tally.visits * self.profile.sweep_between
        return (self.tally.sweep_seconds + between) / self.sweep.workers


def plan(profile: Profile, users: int) -> Sweep:
    """Plan the workers so that the sweep finishes within its hours."""
    visited = round(users * profile.sweep_share)
    work = visited * profile.visit_seconds
    workers = max(1, math.ceil(work / (profile.sweep_hours * 3600)))
    return Sweep(visited, workers, work / workers)


def play(profile: Profile, users: int, *, seed: int, sample: int | None) -> Result:
    """Simulate a day of that many users.

    Args:
        profile: their behaviour.
        users: their number.
        seed: the same seed gives the same day.
        sample: the maximal number of active users to simulate (some more, so that each
            stratum has its part); None: all.
    """
    random = Random(seed)
    draws, lock, sweep = (
        Users(profile, random),
        SimulatedLock(profile, random),
        plan(profile, users),
    )
    active = round(users * profile.active_share)
    if sample is None or active <= sample:
        drawn = list(_everybody(active, random))
    else:
        drawn = list(_sample(profile, active, sample, random))
    parts = [Tally() for _ in range(_GROUPS)]
    for activity, weight, group in drawn:
        tally = parts[group]
        requests, arrivals = draws.day(activity)
        if random.random() < profile.sweep_share:
            arrivals.append(draws.visit(profile.sweep_starts + sweep.seconds * random.random()))
            arrivals.sort()
        kept = lock.record_seconds
        served = lock.serve(arrivals)
        tally.users += weight
        tally.requests += requests * weight
        tally.record_seconds += (lock.record_seconds - kept) * weight
        tally.count(served, weight)
        _expect(profile, sweep, served, weight * profile.sweep_share, tally)
    total = Tally()
    for tally in parts:
        absent = (users - active) / _GROUPS
        tally.users += absent
        _sweep_absent(profile, sweep, absent * profile.sweep_share, tally)
        total.add(tally)
    return Result(
        profile=profile,
        users=users,
        drawn=len(drawn),
        sweep=sweep,
        tally=total,
        parts=parts,
    )


def _everybody(active: int, random: Random) -> Iterator[_Drawn]:
    for number in range(active):
        yield _Drawn(_within(0.0, 1.0, random), 1.0, number % _GROUPS)


def _sample(profile: Profile, active: int, sample: int, random: Random) -> Iterator[_Drawn]:
    for low, high in pairwise(_EDGES):
        share = _actions_below(profile, high) - _actions_below(profile, low)
        count = _GROUPS * max(1, math.ceil(share * sample / _GROUPS))
        weight = active * (high - low) / count
        for number in range(count):
            yield _Drawn(_within(low, high, random), weight, number % _GROUPS)


def _within(low: float, high: float, random: Random) -> float:
    """Return a random number between the bounds, and neither 0 nor 1."""
    return low + (high - low) * min(max(random.random(), 1e-9), 1 - 1e-9)


def _actions_below(profile: Profile, activity: float) -> float:
    """Return the share of all actions by users with this activity or less."""
    if not 0 < activity < 1:
        return activity
    normal = NormalDist()
    return normal.cdf(normal.inv_cdf(activity) - profile.actions.sigma)


def _expect(
    profile: Profile, sweep: Sweep, served: list[Served], weight: float, tally: Tally
) -> None:
    """Add the probability that a visit at a random time of the sweep meets these requests."""
    begins, ends = profile.sweep_starts, profile.sweep_starts + sweep.seconds
    interactive = [one for one in served if not one.batch]
    held = sum(
        max(0.0, min(one.at + one.seconds, ends) - max(one.at + one.waited, begins))
        for one in interactive
        if one.granted
    )
    came = sum(begins <= one.at < ends for one in interactive)
    # A request that arrives during the last step is served at its end.
    interruptible = profile.sweep_section.mean * (1 - 1 / profile.sweep_steps)
    tally.expected_waits += weight * held / sweep.seconds
    tally.expected_yields += weight * came * interruptible / sweep.seconds


def _sweep_absent(profile: Profile, sweep: Sweep, visits: float, tally: Tally) -> None:
    """Add the sweep's visits to absent users, which meet no contention."""
    section, trip = profile.sweep_section.mean, profile.round_trip
    tally.visits += visits
    tally.sweep_seconds += visits * (section + (1 + profile.sweep_steps) * trip)
    tally.record_seconds += visits * (section + profile.sweep_steps * trip)
    for part in range(PARTS):
        begins = max(part * PART_SECONDS, profile.sweep_starts)
        ends = min((part + 1) * PART_SECONDS, profile.sweep_starts + sweep.seconds)
        if ends > begins:
            share = (ends - begins) / sweep.seconds
            tally.operations[part] += visits * share * (1 + profile.sweep_steps)
