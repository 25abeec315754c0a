"""What people do on the site, and how long things take: every assumption, in one place."""

from __future__ import annotations

import dataclasses
import math

DAY_SECONDS = 86_400.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Lognormal:
    """Times or counts of which the logarithm is normal.

    Attributes:
        median: half are below.
        sigma: the standard deviation of the logarithm.
        most: what is above is cut to this.
    """

    median: float
    sigma: float
    most: float = math.inf

    def quantile(self, normal: float) -> float:
        """The value that belongs to a standard normal variable's."""
        return min(self.median * math.exp(self.sigma * normal), self.most)

    @property
    def mean(self) -> float:
        """On average, leaving out that the largest are cut."""
        return self.median * math.exp(self.sigma**2 / 2)


#: How busy each hour of a day is, from midnight: a site for pupils and students of some time
#: zones next to each other. Only ratios matter.
HOURS = (
    *(1.2, 0.8, 0.6, 0.5, 0.5, 0.7, 1.5, 3.0, 5.0, 6.0, 6.4, 6.2),
    *(5.6, 5.8, 6.0, 5.8, 5.6, 5.8, 6.4, 7.0, 6.8, 5.6, 4.0, 2.4),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """A site's traffic. Times in seconds.

    Attributes:
        active_share: of all users, those who come on a given day.
        actions: of such a user on the day: pages opened, buttons pressed. The heavy tail: most do
            a handful, some do thousands.
        session_actions: of them in one session, on average (geometric).
        hours: how busy each hour is.
        thinking: between two actions of one tab.
        two_tabs_share: of sessions, those in which two tabs are used at the same time.
        extra_requests: that a page sends beside the first one, in parallel, on average
            (geometric).
        extra_spread: the mean time from the first to each of these (exponential).
        locking_share: of first requests, those that take the user's lock.
        extra_locking_share: of the others.
        double_click_share: of actions, those whose first request is sent twice.
        double_click: the time between the two.
        section: how long a request has the lock: reading, computing, writing.
        slow_share: of sections, those that are much slower.
        slow_section: how long these take.
        sweep_share: of all users, those whom the nightly job visits.
        sweep_section: how long it has a user's lock.
        sweep_steps: in so many equal parts; between two it lets people pass
            (`yield_to_waiters`).
        sweep_between: from one user to the next.
        sweep_hours: in what time it has to be done: so many workers are taken.
        sweep_starts: seconds after midnight.
        round_trip: to memcached and back.
        other: what a request does beside its section: it is in a worker's thread meanwhile.
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
        """What a process learns that people's requests hold locks for: the median."""
        return self.section.median + self.round_trip

    @property
    def mean_section(self) -> float:
        """On average, the slow ones included."""
        return (1 - self.slow_share) * self.section.mean + self.slow_share * self.slow_section.mean

    @property
    def visit_seconds(self) -> float:
        """What the sweep takes for a user whom nobody else wants, on average: its section, the
        round trips of the lock, a look after each step, and the way to the next user."""
        trips = (1 + self.sweep_steps) * self.round_trip
        return self.sweep_section.mean + trips + self.sweep_between

    @property
    def typical_sweep(self) -> float:
        """The same of the sweep."""
        return self.sweep_section.median + self.round_trip
