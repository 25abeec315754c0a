"""The same requests sent to a real memcached, by real processes: a check of the simulation.

A day of some hundred users is pressed into seconds, so that they meet often
enough to be counted. Threads of several processes then ask for the locks at
the times that were drawn, through `userlock` as an app would, and hold them
for as long as was drawn. What came of it is held against what `line` says about
the same arrivals.

Threads are late by a moment, and sleep a moment too long, the more so the
busier the machine is. So the simulation is given the times as they were, not as
they were drawn: it is the waiting that is checked, not the machine.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import NamedTuple

from tools.traffic.line import Line, Served
from tools.traffic.people import Arrival, People
from tools.traffic.profile import Lognormal, Profile
from userlock.errors import LockTimeout
from userlock.events import Acquired, Event, Listeners
from userlock.lock.api import global_lock
from userlock.lock.scope import scope
from userlock.lock.service import LockService
from userlock.stores import memcache  # noqa: F401  (makes memcache:// known)

PROCESSES = 3
_THREADS = 24
#: Until the processes have begun and found the server.
_WARM_UP_SECONDS = 2.0

#: People in a hurry, and a sweep in the middle of their day.
RUSH = Profile(
    active_share=1.0,
    actions=Lognormal(median=5.0, sigma=0.8, most=30.0),
    session_actions=8.0,
    hours=(1.0,),
    thinking=Lognormal(median=0.4, sigma=0.8, most=3.0),
    two_tabs_share=0.2,
    extra_requests=2.0,
    locking_share=0.6,
    extra_locking_share=0.25,
    double_click_share=0.05,
    section=Lognormal(median=0.04, sigma=0.5, most=0.4),
    slow_share=0.01,
    slow_section=Lognormal(median=0.3, sigma=0.4, most=0.8),
    sweep_section=Lognormal(median=0.09, sigma=0.3, most=0.3),
)


class Visit(NamedTuple):
    """An arrival as it was, and what came of it.

    Attributes:
        user: whose lock.
        arrival: when it asked, and for how long it had the lock.
        waited: from asking to having the lock, in seconds.
        refused: whether somebody had it.
        granted: whether it got it.
        yields: how often it let people pass.
    """

    user: int
    arrival: Arrival
    waited: float
    refused: bool
    granted: bool
    yields: int


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What is compared.

    Attributes:
        locks: that were asked for.
        granted: of them, those that were had.
        operations: that memcached was sent for them.
        waiting_share: of the locks, those that were not free.
        wait_p50, wait_p90: how long these waited, in seconds.
        yields: how often the sweep let people pass.
    """

    locks: int
    granted: int
    operations: int
    waiting_share: float
    wait_p50: float
    wait_p90: float
    yields: int

    @classmethod
    def of(cls, outcomes: Sequence[Visit] | Sequence[Served], operations: int) -> Summary:
        """Of what was measured, or simulated."""
        waits = sorted(each.waited for each in outcomes if each.refused)
        return cls(
            locks=len(outcomes),
            granted=sum(each.granted for each in outcomes),
            operations=operations,
            waiting_share=len(waits) / len(outcomes),
            wait_p50=waits[len(waits) // 2] if waits else 0.0,
            wait_p90=waits[len(waits) * 9 // 10] if waits else 0.0,
            yields=sum(each.yields for each in outcomes),
        )


def trace(profile: Profile, users: int, *, seconds: float, seed: int) -> dict[int, list[Arrival]]:
    """The day of each user, in so many seconds."""
    random = Random(seed)
    people = People(profile, random, day_seconds=seconds)
    arrivals = {user: people.day((user + 0.5) / users).arrivals for user in range(users)}
    for mine in arrivals.values():
        mine.append(people.visit(seconds * random.random()))
        mine.sort()
    return arrivals


def replay(url: str, arrivals: dict[int, list[Arrival]], *, seed: int) -> list[Visit]:
    """Ask for all of it in real time; blocks until it is done.

    Args:
        url: of the lease store.
        arrivals: of each user.
        seed: which process gets which request.
    """
    random = Random(seed)
    shares: list[list[tuple[int, Arrival]]] = [[] for _ in range(PROCESSES)]
    for user, mine in arrivals.items():
        for arrival in mine:
            random.choice(shares).append((user, arrival))
    starts_at = time.monotonic() + _WARM_UP_SECONDS
    # Fresh processes: nothing of this one's connections and threads is in them.
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        found = pool.starmap(_work, [(url, share, starts_at) for share in shares], chunksize=1)
    return [visit for visits in found for visit in visits]


def simulate(
    profile: Profile,
    visits: Sequence[Visit],
    *,
    seed: int,
    section: Callable[[float], float] = lambda seconds: seconds,
) -> Summary:
    """What the simulation says about arrivals as they were.

    Args:
        profile: what they were drawn from.
        visits: as measured. A round trip takes what it took those who had to wait for nobody, on
            average: on a busy machine that is much more than the median.
        seed: for jitter.
        section: what to take for a section of so many seconds.
    """
    trip = statistics.fmean(visit.waited for visit in visits if not visit.refused)
    line = Line(dataclasses.replace(profile, round_trip=trip), Random(seed))
    served: list[Served] = []
    by_user: dict[int, list[Arrival]] = {}
    for visit in visits:
        arrival = visit.arrival
        by_user.setdefault(visit.user, []).append(
            arrival._replace(seconds=section(arrival.seconds))
        )
    for arrivals in by_user.values():
        served += line.serve(sorted(arrivals))
    return Summary.of(served, sum(each.operations for each in served))


# --- in each process ------------------------------------------------------------------------


def _work(url: str, share: list[tuple[int, Arrival]], starts_at: float) -> list[Visit]:
    told = threading.local()
    service = LockService.from_url(url)
    service.listeners = Listeners([_Note(told)])
    with ThreadPoolExecutor(_THREADS) as threads:
        futures = []
        for user, arrival in sorted(share, key=lambda each: each[1].at):
            time.sleep(max(0.0, starts_at + arrival.at - time.monotonic()))
            futures.append(threads.submit(_visit, service, told, user, arrival, starts_at))
        visits = [future.result() for future in futures]
    service.close()
    return visits


class _Note:
    """A listener that keeps, for the thread that asked, whether anybody was in its way."""

    def __init__(self, told: threading.local) -> None:
        self._told = told

    def __call__(self, event: Event) -> None:
        if isinstance(event, Acquired) and not self._told.said:
            self._told.said = True
            self._told.refused = bool(event.blocked_by)


def _visit(
    service: LockService, told: threading.local, user: int, arrival: Arrival, starts_at: float
) -> Visit:
    told.said, told.refused = False, True  # those who give up were refused
    had = 0.0
    yields = 0
    asked = time.monotonic()
    granted = asked
    try:
        with (
            scope(service, priority="batch" if arrival.batch else "interactive"),
            global_lock(user) as tenure,
        ):
            granted = time.monotonic()
            for step in range(arrival.steps):
                if step:
                    before, tenure = tenure, tenure.yield_to_waiters()
                    yields += tenure is not before
                began = time.monotonic()
                time.sleep(arrival.seconds / arrival.steps)
                had += time.monotonic() - began
    except LockTimeout:
        return Visit(user, arrival, time.monotonic() - asked, True, False, yields)
    as_it_was = arrival._replace(at=asked - starts_at, seconds=had)
    return Visit(user, as_it_was, granted - asked, told.refused, True, yields)
