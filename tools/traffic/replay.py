"""The same requests sent to a real memcached, by real processes: a check of the simulation.

A day of some hundred users is compressed into seconds, so that contention is frequent enough to be
counted. Threads of several processes then take the locks at the drawn times, through `userlock` as
an app would, and hold them for the drawn durations. The result is compared with `lock`'s simulation
of the same arrivals.

Threads are a little late, and sleep a little too long, the more so the busier the machine is. So
the simulation gets the actual times, not the drawn ones: the check is about the waiting, not the
machine.
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

from tools.traffic.lock import Served, SimulatedLock
from tools.traffic.profile import Lognormal, Profile
from tools.traffic.users import Arrival, Users
from userlock.errors import LockTimeout
from userlock.events import Acquired, Event, Listeners
from userlock.lock.api import global_lock
from userlock.lock.scope import scope
from userlock.lock.service import LockService
from userlock.stores import memcache  # noqa: F401  (makes memcache:// known)

PROCESSES = 3
_THREADS = 24
#: Time for the processes to start and to find the server.
_WARM_UP_SECONDS = 2.0

#: Users in a hurry, and a sweep in the middle of their day.
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
    """An actual arrival, and its outcome.

    Attributes:
        user: the user of the lock.
        arrival: its time, and for how long it held the lock.
        waited: the wait until the grant, in seconds.
        refused: whether the lock was held at first.
        granted: whether it got the lock.
        yields: how often it yielded to interactive requests.
    """

    user: int
    arrival: Arrival
    waited: float
    refused: bool
    granted: bool
    yields: int


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """The figures to compare.

    Attributes:
        locks: number of requested locks.
        granted: number of granted locks.
        operations: number of commands sent to memcached.
        waiting_share: share of the locks that were not free.
        wait_p50, wait_p90: waits for these, in seconds.
        yields: how often the sweep yielded to interactive requests.
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
        """Compute the figures of a measurement or a simulation."""
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
    """Draw the day of each user, in that many seconds."""
    random = Random(seed)
    draws = Users(profile, random, day_seconds=seconds)
    arrivals = {user: draws.day((user + 0.5) / users).arrivals for user in range(users)}
    for mine in arrivals.values():
        mine.append(draws.visit(seconds * random.random()))
        mine.sort()
    return arrivals


def replay(url: str, arrivals: dict[int, list[Arrival]], *, seed: int) -> list[Visit]:
    """Request all locks in real time; block until all are done.

    Args:
        url: URL of the lease store.
        arrivals: the arrivals of each user.
        seed: for the distribution of requests to processes.
    """
    random = Random(seed)
    shares: list[list[tuple[int, Arrival]]] = [[] for _ in range(PROCESSES)]
    for user, mine in arrivals.items():
        for arrival in mine:
            random.choice(shares).append((user, arrival))
    starts_at = time.monotonic() + _WARM_UP_SECONDS
    # New processes, without this one's connections and threads.
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
    """Simulate the actual arrivals.

    Args:
        profile: the profile that they were drawn from.
        visits: the measured ones. A round trip takes the mean time of uncontended requests,
            which on a busy machine is much more than the median.
        seed: for jitter.
        section: maps the length of a section to the simulated one.
    """
    trip = statistics.fmean(visit.waited for visit in visits if not visit.refused)
    lock = SimulatedLock(dataclasses.replace(profile, round_trip=trip), Random(seed))
    served: list[Served] = []
    by_user: dict[int, list[Arrival]] = {}
    for visit in visits:
        arrival = visit.arrival
        by_user.setdefault(visit.user, []).append(
            arrival._replace(seconds=section(arrival.seconds))
        )
    for arrivals in by_user.values():
        served += lock.serve(sorted(arrivals))
    return Summary.of(served, sum(each.operations for each in served))


# --- in each process ------------------------------------------------------------------------


def _work(url: str, share: list[tuple[int, Arrival]], starts_at: float) -> list[Visit]:
    noted = threading.local()
    service = LockService.from_url(url)
    service.listeners = Listeners([_Note(noted)])
    with ThreadPoolExecutor(_THREADS) as threads:
        futures = []
        for user, arrival in sorted(share, key=lambda each: each[1].at):
            time.sleep(max(0.0, starts_at + arrival.at - time.monotonic()))
            futures.append(threads.submit(_visit, service, noted, user, arrival, starts_at))
        visits = [future.result() for future in futures]
    service.close()
    return visits


class _Note:
    """A listener that records, per thread, whether its request was contended."""

    def __init__(self, noted: threading.local) -> None:
        self._noted = noted

    def __call__(self, event: Event) -> None:
        if isinstance(event, Acquired) and not self._noted.done:
            self._noted.done = True
            self._noted.refused = bool(event.blocked_by)


def _visit(
    service: LockService, noted: threading.local, user: int, arrival: Arrival, starts_at: float
) -> Visit:
    noted.done, noted.refused = False, True  # a timed-out request was refused
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
    return Visit(user, as_it_was, granted - asked, noted.refused, True, yields)
