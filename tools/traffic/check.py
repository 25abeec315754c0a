"""The command `python -m tools.traffic --check`: the simulation compared with a real memcached."""

from __future__ import annotations

import dataclasses

from benchmarks.server import memcached
from tools.traffic.replay import RUSH, Summary, replay, simulate, trace

USERS = 250
SECONDS = 15.0

#: The allowed relative difference of each figure. On an idle machine the figures differ by a few
#: per cent. On a busy one threads are late, requests contend more or less often for that reason,
#: and the longest waits grow. Sections that are half as long again are still detected.
BOUNDS = {
    "locks": 0.0,
    "granted": 0.0,
    "operations": 0.15,
    "waiting_share": 0.12,
    "wait_p50": 0.3,
    "wait_p90": 0.5,
}


def differences(measured: Summary, simulated: Summary) -> list[str]:
    """Return the differences that exceed the bounds, in words."""
    found = []
    for name, bound in BOUNDS.items():
        real, said = getattr(measured, name), getattr(simulated, name)
        if abs(said - real) > bound * real:
            found.append(f"{name}: {real:.4g} measured, {said:.4g} simulated")
    return found


def main(seed: int) -> int:
    """Measure, simulate, compare; return 1 if a figure differs too much."""
    arrivals = trace(RUSH, USERS, seconds=SECONDS, seed=seed)
    with memcached() as server:
        visits = replay(f"memcache://{server.address}?prefix=traffic", arrivals, seed=seed)
        measured = Summary.of(visits, server.requests())
    simulated = simulate(RUSH, visits, seed=seed)
    print(f"{USERS} users, their day in {SECONDS:g} s, with a real memcached")
    print(f"{'':<14}  {'measured':>10}  {'simulated':>10}  {'allowed':>9}")
    for field in dataclasses.fields(Summary):
        real, said = getattr(measured, field.name), getattr(simulated, field.name)
        bound = f"{BOUNDS[field.name]:.0%}" if field.name in BOUNDS else ""
        print(f"{field.name:<14}  {real:>10.4g}  {said:>10.4g}  {bound:>9}")
    wrong = differences(measured, simulated)
    print("\n".join(wrong) or "The simulation agrees with the measurement.")
    return 1 if wrong else 0
