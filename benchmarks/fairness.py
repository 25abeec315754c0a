"""Fairness: eight processes contend for one lock; shares of each and waits.

Two games: with a think time drawn between 0 and 10 ms after each visit, as real requests come, and
without any. Without, the process that has just released the lock is the first to ask again.
`racers.py` describes the common start and the records, `contest.py` their evaluation.
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
#: The titles by think time.
_GAMES = {
    MOST_THINK_SECONDS: f"think time 0 to {MOST_THINK_SECONDS * 1000:.0f} ms",
    0.0: "no think time",
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
            f"{PROCESSES} processes begin together and contend for one lock for {window:g} s, "
            f"rounds: {rounds}; each visit to the section sleeps {SECTION_SECONDS * 1000:.0f} ms. "
            "Share: the visits' own measured time per wall time, so sections back to back are "
            "100 %. Jain: the fairness index of the processes' acquisitions (the worst round's). "
            "Waits: all waits in that time, as each process saw them, followed to their ends. "
            "Requests: requests that the server executed, per acquisition."
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
    """Return the figures of one contender in one game."""
    waits = _waits(outcomes)
    contests = [outcome.contest for outcome in outcomes]
    counts = [contest.acquisitions() for contest in contests]
    if not waits or not all(map(any, counts)):
        return ()
    share = sum(contest.share() for contest in contests) / len(contests)
    requests = sum(outcome.requests for outcome in outcomes)
    figures = (
        ("share", share * 100, "percent"),
        ("Jain", min(map(jain, counts)), "index"),
        ("p50", percentile(waits, 50) * 1000, "ms"),
        ("p99", percentile(waits, 99) * 1000, "ms"),
        ("longest wait", max(waits) * 1000, "ms"),
        ("timed out", sum(contest.timeouts() for contest in contests), "count"),
        ("requests", requests / sum(map(sum, counts)), "requests"),
    )
    return tuple(
        Measurement(contender=contender, metric=metric, value=value, unit=unit, samples=len(waits))
        for metric, value, unit in figures
    )


def remarks(kind: locks.Kind, outcomes: Sequence[Outcome]) -> list[str]:
    """Return remarks on one contender: violations of mutual exclusion, and exceptions.

    Raises:
        ExclusionViolated: one of our own locks let two in.
        JobFailed: one of our own locks raised.
    """
    contests = [outcome.contest for outcome in outcomes]
    found = []
    both = [overlap for contest in contests for overlap in contest.overlaps()]
    if both:
        longest = max(overlap.seconds for overlap in both) * 1000
        found.append(
            f"{kind.name} VIOLATED MUTUAL EXCLUSION: two were in the section at once "
            f"{len(both)} times, for up to {longest:.2f} ms."
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
