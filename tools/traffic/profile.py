"""The users' behaviour and the durations: every assumption, in one place."""

from __future__ import annotations

import dataclasses
import math

DAY_SECONDS = 86_400.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Lognormal:
    """A log-normal distribution of times or counts.

    Attributes:
        median: half of the values are below.
        sigma: the standard deviation of the logarithm.
        most: the maximum; larger values are cut.
    """

    median: float
    sigma: float
    most: float = math.inf

    def quantile(self, normal: float) -> float:
        """Return the value at a quantile of the standard normal distribution."""
        return min(self.median * math.exp(self.sigma * normal), self.most)

    @property
    def mean(self) -> float:
        """Return the mean, ignoring the cut."""
        return self.median * math.exp(self.sigma**2 / 2)


#: The activity in each hour of a day, from midnight: a site for pupils and students of some
#: neighbouring time zones. Only ratios matter.
HOURS = (
    *(1.2, 0.8, 0.6, 0.5, 0.5, 0.7, 1.5, 3.0, 5.0, 6.0, 6.4, 6.2),
    *(5.6, 5.8, 6.0, 5.8, 5.6, 5.8, 6.4, 7.0, 6.8, 5.6, 4.0, 2.4),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """A site's traffic. Times in seconds.

    Attributes:
        active_share: share of all users who are active on a given day.
        actions: number of an active user's actions on the day: pages opened, buttons pressed. It
            has a heavy tail: most users do a handful, some do thousands.
        session_actions: mean number of actions in one session (geometric).
        hours: activity in each hour.
        thinking: time between two actions in one tab.
        two_tabs_share: share of sessions with two tabs in use at the same time.
        extra_requests: mean number of further, parallel requests of a page (geometric).
        extra_spread: mean time from the first request to each of these (exponential).
        locking_share: share of first requests that take the user's lock.
        extra_locking_share: the same share of the further requests.
        double_click_share: share of actions whose first request is sent twice.
        double_click: time between the two.
        section: time for which a request holds the lock: reading, computing, writing.
        slow_share: share of sections that are much slower.
        slow_section: duration of these.
        sweep_share: share of all users whom the nightly job visits.
        sweep_section: time for which it holds a user's lock.
        sweep_steps: number of equal parts of it, with a `yield_to_waiters` between two.
        sweep_between: time from one user to the next.
        sweep_hours: planned duration, which determines the number of workers.
        sweep_starts: seconds after midnight.
        round_trip: to memcached and back.
        other: a request's time outside its section, during which it occupies a worker's thread.
    """

    active_share: float = 0.15
    actions: Lognormal = Lognormal(median=8.0, sigma=1.4, most=3000.0)
    session_actions: float = 12.0
    hours: tuple[float, ...] = HOURS
    thinking: Lognormal = Lognormal(median=12.0, sigma=1.1, most=1200.0)
    two_tabs_share: float = 0.1
    extra_requests: float = 3.0
    extra_spread: float = 0.03
    locking_share: float = 0.4
    extra_locking_share: float = 0.06
    double_click_share: float = 0.02
    double_click: Lognormal = Lognormal(median=0.18, sigma=0.3, most=1.0)
    section: Lognormal = Lognormal(median=0.045, sigma=0.7, most=30.0)
    slow_share: float = 0.003
    slow_section: Lognormal = Lognormal(median=1.5, sigma=0.8, most=30.0)
    sweep_share: float = 1.0
    sweep_section: Lognormal = Lognormal(median=0.06, sigma=0.5, most=30.0)
    sweep_steps: int = 3
    sweep_between: float = 0.005
    sweep_hours: float = 4.0
    sweep_starts: float = 7200.0
    round_trip: float = 0.001
    other: float = 0.06

    @property
    def typical_section(self) -> float:
        """Return an interactive request's median time with the lock, as a process learns it."""
        return self.section.median + self.round_trip

    @property
    def mean_section(self) -> float:
        """Return the mean, slow sections included."""
        return (1 - self.slow_share) * self.section.mean + self.slow_share * self.slow_section.mean

    @property
    def visit_seconds(self) -> float:
        """Return the sweep's mean time for a user without contention.

        It includes the section, the lock's round trips, a poll after each step, and the way to the
        next user.
        """
        trips = (1 + self.sweep_steps) * self.round_trip
        return self.sweep_section.mean + trips + self.sweep_between

    @property
    def typical_sweep(self) -> float:
        """Return the median time for which the sweep holds a lock."""
        return self.sweep_section.median + self.round_trip
