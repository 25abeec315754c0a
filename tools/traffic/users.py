"""A user's random day: sessions, tabs, pages with parallel requests, double clicks."""

from __future__ import annotations

import itertools
import math
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from tools.traffic.profile import DAY_SECONDS, Lognormal, Profile

_NORMAL = NormalDist()


class Arrival(NamedTuple):
    """A request for a user's lock.

    Attributes:
        at: its time, in seconds after midnight.
        seconds: the length of its section.
        steps: number of parts of the section, with a yield between two. Only batch has several.
        batch: whether it is batch work.
    """

    at: float
    seconds: float
    steps: int = 1
    batch: bool = False


class Day(NamedTuple):
    """The day of one user.

    Attributes:
        requests: number of requests, with or without the lock.
        arrivals: the requests that take the lock, in order of time.
    """

    requests: int
    arrivals: list[Arrival]


class Users:
    """The users' random days. The same seed gives the same sequence of days.

    Args:
        profile: the users' behaviour.
        random: for the draws.
        day_seconds: the time over which sessions are spread; their own length is unaffected.
    """

    def __init__(
        self, profile: Profile, random: Random, *, day_seconds: float = DAY_SECONDS
    ) -> None:
        self._profile = profile
        self._random = random
        self._day_seconds = day_seconds
        self._hours = list(itertools.accumulate(profile.hours))

    def draw(self, value: Lognormal) -> float:
        """Draw one value."""
        return value.quantile(self._random.gauss(0.0, 1.0))

    def day(self, activity: float) -> Day:
        """Draw the day of an active user.

        Args:
            activity: the share of users who are less active: above 0, below 1.
        """
        profile, random = self._profile, self._random
        left = max(1, round(profile.actions.quantile(_NORMAL.inv_cdf(activity))))
        requests = 0
        arrivals: list[Arrival] = []
        while left > 0:
            actions = min(left, 1 + self._geometric(profile.session_actions - 1))
            left -= actions
            start = self._session_start()
            tabs = 2 if random.random() < profile.two_tabs_share else 1
            for tab in range(tabs):
                at = start + tab * self.draw(profile.thinking) / 2
                for _ in range(actions * (tab + 1) // tabs - actions * tab // tabs):
                    requests += self._act(at, arrivals)
                    at += self.draw(profile.thinking)
        arrivals.sort()
        return Day(requests, arrivals)

    def visit(self, at: float) -> Arrival:
        """Return the sweep's visit to a user."""
        profile = self._profile
        return Arrival(at, self.draw(profile.sweep_section), profile.sweep_steps, batch=True)

    def _act(self, at: float, arrivals: list[Arrival]) -> int:
        """Add the requests of one action and return their number."""
        profile, random = self._profile, self._random
        extra = self._geometric(profile.extra_requests)
        sent = 1 + extra
        double = random.random() < profile.double_click_share
        if random.random() < profile.locking_share:
            arrivals.append(Arrival(at, self._section()))
            if double:
                arrivals.append(Arrival(at + self.draw(profile.double_click), self._section()))
        for _ in range(extra):
            if random.random() < profile.extra_locking_share:
                later = at + random.expovariate(1 / profile.extra_spread)
                arrivals.append(Arrival(later, self._section()))
        return sent + double

    def _section(self) -> float:
        profile = self._profile
        slow = self._random.random() < profile.slow_share
        return self.draw(profile.slow_section if slow else profile.section)

    def _session_start(self) -> float:
        random = self._random
        (hour,) = random.choices(range(len(self._hours)), cum_weights=self._hours)
        return (hour + random.random()) * self._day_seconds / len(self._hours)

    def _geometric(self, mean: float) -> int:
        """Draw 0, 1, 2, … with that mean."""
        if mean <= 0:
            return 0
        return int(math.log(1.0 - self._random.random()) / math.log(mean / (1.0 + mean)))
