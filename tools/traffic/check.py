"""`python -m tools.traffic --check`: the simulation held against a real memcached."""

from __future__ import annotations

import dataclasses

from benchmarks.server import memcached
from tools.traffic.replay import RUSH, Summary, replay, simulate, trace

USERS = 250
SECONDS = 15.0

#: By how much of itself each figure may differ. On a machine with nothing else to do they differ
#: by a few per cent. On a busy one threads are late, two requests meet or miss each other for it,
#: and the longest waits get longer; sections that are half as long again are told from these still.
BOUNDS = {
    "locks": 0.0,
    "granted": 0.0,
    "operations": 0.15,
    "waiting_share": 0.12,
    "wait_p50": 0.3,
    "wait_p90": 0.5,
}


def differences(measured: Summary, simulated: Summary) -> list[str]:
    """What differs by more than it may, in words."""
    found = []
    for name, bound in BOUNDS.items():
        real, said = getattr(measured, name), getattr(simulated, name)
        if abs(said - real) > bound * real:
            found.append(f"{name}: {real:.4g} were measured, {said:.4g} simulated")
    return found


def main(seed: int) -> int:
    """Measure, simulate, compare; the exit code is 1 if something differs too much."""
    arrivals = trace(RUSH, USERS, seconds=SECONDS, seed=seed)
    with memcached() as server:
        visits = replay(f"memcache://{server.address}?prefix=traffic", arrivals, seed=seed)
        measured = Summary.of(visits, server.requests())
    simulated = simulate(RUSH, visits, seed=seed)
    print(f"{USERS} users, their day in {SECONDS:g} s, against a real memcached")
    print(f"{'':<14}  {'measured':>10}  {'simulated':>10}  {'may differ by':>13}")
    for field in dataclasses.fields(Summary):
        real, said = getattr(measured, field.name), getattr(simulated, field.name)
        bound = f"{BOUNDS[field.name]:.0%}" if field.name in BOUNDS else ""
        print(f"{field.name:<14}  {real:>10.4g}  {said:>10.4g}  {bound:>13}")
    wrong = differences(measured, simulated)
    print("\n".join(wrong) or "The simulation says what happens.")
    return 1 if wrong else 0
