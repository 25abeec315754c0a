"""Fairness: eight processes want one lock all the time; who gets it, and how long it takes.

Two games: with a think time drawn between 0 and 10 ms after each visit, as
requests come, and without any, where the one who has just given the lock back
is the nearest to it. `racers.py` says how the start is shared and what is
written down; `contest.py` what is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from benchmarks import locks
from benchmarks.contest import ExclusionViolated
from benchmarks.crew import JobFailed, crew
from benchmarks.figures import Measurement, Section, Table, jain, percentile
from benchmarks.racers import Outcome, Rules, run_contest

PROCESSES = 8
SECTION_SECONDS = 0.005
MOST_THINK_SECONDS = 0.010
#: Title by think time.
_GAMES = {
    MOST_THINK_SECONDS: f"thinks 0 to {MOST_THINK_SECONDS * 1000:.0f} ms",
    0.0: "does not think",
}


def run(*, quick: bool) -> Section:
    """Measure; about 18 seconds for each contender, or 4 if `quick`."""
    rounds, window, warm_up = (1, 0.5, 0.1) if quick else (2, 3.0, 0.4)
    kinds = locks.present()
    outcomes: dict[tuple[float, str], list[Outcome]] = {}
    failures: dict[str, str] = {}
    random = Random()
    with locks.servers_for(kinds) as servers, crew(PROCESSES) as workers:
        for _ in range(rounds):
            for think in _GAMES:
                rules = Rules(
                    section=SECTION_SECONDS, most_think=think, window=window, warm_up=warm_up
                )
                for kind in random.sample(kinds, len(kinds)):
                    if kind.name in failures:
                        continue
                    try:
                        outcome = run_contest(
                            workers, kind, servers[kind.store], waiters=PROCESSES, rules=rules
                        )
                    except JobFailed as error:
                        if kind.ours:
                            raise
                        failures[kind.name] = str(error)
                    else:
                        outcomes.setdefault((think, kind.name), []).append(outcome)
    notes = [
        note
        for kind in kinds
        for note in remarks(
            kind, [one for think in _GAMES for one in outcomes.get((think, kind.name), [])]
        )
    ]
    return Section(
        name="fairness",
        title="Fairness: eight processes, one lock",
        method=(
            f"{PROCESSES} processes begin at one instant and want one lock for {window:g} s, "
            f"rounds: {rounds}; each visit to the section sleeps {SECTION_SECONDS * 1000:.0f} ms. "
            "Share: the visits' own measured time by the wall time, so sections back to back are "
            "100 %. Jain: the fairness index of the processes' acquisitions (the worst round's). "
            "Waits: all that touch that time, as each process saw them, followed to their ends. "
            "Operations: requests that the server carried out, by acquisitions."
        ),
        tables=tuple(
            Table(
                title=title,
                measurements=tuple(
                    figure
                    for kind in kinds
                    for figure in measurements(kind.name, outcomes.get((think, kind.name), []))
                ),
            )
            for think, title in _GAMES.items()
        ),
        notes=(
            *notes,
            *(f"{name} failed: {why}" for name, why in failures.items()),
            *locks.missing(),
            locks.defaults_of(kinds),
        ),
        waits={
            kind.name: waits
            for kind in kinds
            if (waits := _waits(outcomes.get((MOST_THINK_SECONDS, kind.name), [])))
        },
    )


def measurements(contender: str, outcomes: Sequence[Outcome]) -> tuple[Measurement, ...]:
    """The figures of one contender in one game."""
    waits = _waits(outcomes)
    contests = [outcome.contest for outcome in outcomes]
    counts = [contest.acquisitions() for contest in contests]
    if not waits or not all(map(any, counts)):
        return ()
    share = sum(contest.share() for contest in contests) / len(contests)
    operations = sum(outcome.operations for outcome in outcomes)
    figures = (
        ("share", share * 100, "percent"),
        ("Jain", min(map(jain, counts)), "index"),
        ("p50", percentile(waits, 50) * 1000, "ms"),
        ("p99", percentile(waits, 99) * 1000, "ms"),
        ("longest", max(waits) * 1000, "ms"),
        ("gave up", sum(contest.gave_up() for contest in contests), "count"),
        ("operations", operations / sum(map(sum, counts)), "operations"),
    )
    return tuple(
        Measurement(contender=contender, metric=metric, value=value, unit=unit, samples=len(waits))
        for metric, value, unit in figures
    )


def remarks(kind: locks.Kind, outcomes: Sequence[Outcome]) -> list[str]:
    """What else is to be said of one contender: that it let two in, or what it raised.

    Raises:
        ExclusionViolated: it did, and it is ours.
        JobFailed: it raised, and it is ours.
    """
    contests = [outcome.contest for outcome in outcomes]
    found = []
    both = [overlap for contest in contests for overlap in contest.overlaps()]
    if both:
        longest = max(overlap.seconds for overlap in both) * 1000
        found.append(
            f"{kind.name} DID NOT EXCLUDE: two were in the section at once {len(both)} times, "
            f"for up to {longest:.2f} ms."
        )
        if kind.ours:
            raise ExclusionViolated(found[0])
    errors = [error for contest in contests for error in contest.errors()]
    if errors:
        found.append(
            f"{kind.name} raised in {len(errors)} waiters, which then stopped: {errors[0]:.200}"
        )
        if kind.ours:
            raise JobFailed(found[-1])
    stuck = sum(diary.stuck for contest in contests for diary in contest.diaries)
    if stuck:
        found.append(f"{kind.name}: {stuck} waiters were never served, though the lock was free.")
    return found


def _waits(outcomes: Sequence[Outcome]) -> list[float]:
    return [wait for outcome in outcomes for wait in outcome.contest.waits()]
