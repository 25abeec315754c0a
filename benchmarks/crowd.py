"""A crowd: up to 200 waiters on one lock, as threads of eight processes.

With a lock that polls, requests grow with the number of waiters. With a fair lock, each waiter
waits for all the others, and no longer. So this section measures the growth of the server's load
with the crowd, and looks for starved waiters. The larger the crowd, the longer the game, so that
each waiter could have the same number of turns.
"""

from __future__ import annotations

from random import Random

from benchmarks import fairness, locks
from benchmarks.crew import JobFailed, crew
from benchmarks.figures import Measurement, Section, Table, jain
from benchmarks.racers import Outcome, Rules, run_contest

PROCESSES = 8


def run(*, quick: bool) -> Section:
    """Measure; about 18 seconds for each contender, or 3 if `quick`."""
    sizes, turns, warm_up = ((16,), 4, 0.1) if quick else ((50, 100, 200), 5, 0.4)
    section = fairness.SECTION_SECONDS
    kinds = locks.present()
    outcomes: dict[tuple[int, str], Outcome] = {}
    notes: list[str] = []
    with locks.servers_for(kinds) as servers, crew(PROCESSES) as workers:
        for size in sizes:
            rules = Rules(
                section=section, most_think=0.0, window=size * section * turns, warm_up=warm_up
            )
            for kind in Random().sample(kinds, len(kinds)):
                try:
                    outcome = run_contest(
                        workers, kind, servers[kind.store], waiters=size, rules=rules
                    )
                except JobFailed as error:
                    if kind.ours:
                        raise
                    notes.append(f"{kind.name} failed with {size} waiters: {error}")
                else:
                    outcomes[size, kind.name] = outcome
                    notes += [
                        f"With {size} waiters: {note}" for note in fairness.remarks(kind, [outcome])
                    ]
    return Section(
        name="crowd",
        title="Crowd: many waiters, one lock",
        method=(
            f"Threads of {PROCESSES} processes contend for one lock, without think time, "
            f"{section * 1000:g} ms a visit, for the time of {turns} visits of each back "
            "to back: requests that the server "
            "executes per second, the waiters' processor time in cores, the share of the time with "
            "a visitor in the section, Jain's index over the waiters' acquisitions, and the "
            "longest wait, followed to its end. In a fair queue each waits "
            "for as many visits as there are waiters."
        ),
        tables=tuple(
            Table(
                title=f"{size} waiters",
                measurements=tuple(
                    figure
                    for kind in kinds
                    if (size, kind.name) in outcomes
                    for figure in measurements(kind.name, outcomes[size, kind.name])
                ),
            )
            for size in sizes
        ),
        notes=(*notes, *locks.missing()),
    )


def measurements(contender: str, outcome: Outcome) -> tuple[Measurement, ...]:
    """Return the figures of one contender with one size of crowd."""
    contest = outcome.contest
    acquisitions = contest.acquisitions()
    total = sum(acquisitions)
    figures = [
        ("requests", outcome.requests / contest.seconds, "per second"),
        ("CPU", outcome.cpu_seconds / contest.seconds, "cores"),
        ("share", contest.share() * 100, "percent"),
        ("Jain", jain(acquisitions) if total else 0.0, "index"),
        ("longest wait", contest.longest_wait(), "s"),
        ("not served", sum(not count for count in acquisitions), "count"),
        ("timed out", contest.timeouts(), "count"),
    ]
    return tuple(
        Measurement(contender=contender, metric=metric, value=value, unit=unit, samples=total)
        for metric, value, unit in figures
    )
