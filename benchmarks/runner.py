"""Comparison of contenders: many short rounds, each in random order.

A machine's speed drifts with its clock rate, its caches and other processes. A contender that is
measured ten seconds after another one is in effect measured on another machine. So each round runs
every contender for some milliseconds, in a new random order, and the comparison is within one
round.

    round 1   B  floor  A     A/floor, B/floor
    round 2   floor  A  B     A/floor, B/floor
    …                         the median of each, and its spread

Single operations are timed one by one, so each carries the cost of reading the clock (some 0.05 µs,
the same for all). The garbage collector stays on.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random

Operation = Callable[[], object]
Timer = Callable[[], int]
Centre = Callable[[Sequence[float]], float]
Around = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One way to perform the measured work.

    Attributes:
        name: its name in the table.
        operations: creates that many operations, each to be called once. Not timed.
        around: a context for a round: the operations are created and called inside it. Not timed.
        units: number of units of work per operation; times are per unit.
    """

    name: str
    operations: Callable[[int], Iterable[Operation]]
    around: Around = contextlib.nullcontext
    units: int = 1


def repeat(operation: Operation) -> Callable[[int], list[Operation]]:
    """Make operations for a `Contender`: always the same one."""
    return lambda count: [operation] * count


def median(values: Sequence[float]) -> float:
    """Return a round's median time, without outliers (interrupts, other processes).

    For the latency of an operation.
    """
    return statistics.median(values)


def mean(values: Sequence[float]) -> float:
    """Return a round's mean time, which spreads rare costs (garbage collections) over all
    operations.

    For work that is repeated many times.
    """
    return statistics.fmean(values)


def interleave(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    operations: int,
    centre: Centre = median,
    timer: Timer = time.perf_counter_ns,
    random: Random | None = None,
    warm_up: int = 2,
) -> dict[str, list[float]]:
    """Measure all contenders, round by round.

    Args:
        contenders: with different names.
        rounds: number of rounds to keep.
        operations: number of operations of each contender per round.
        centre: summarises the times of one round.
        timer: returns nanoseconds.
        random: for the order within rounds.
        warm_up: rounds before the first one that is kept.

    Returns:
        The time of each round by contender, in nanoseconds per unit of work. The n-th times of
        all contenders are of the same round.
    """
    random = random or Random()
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    if len(times) < len(contenders):
        raise ValueError("contenders need different names")
    order = list(contenders)
    for number in range(warm_up + rounds):
        random.shuffle(order)
        for contender in order:
            with contender.around():
                elapsed = _run(contender.operations(operations), timer)
            if number >= warm_up:
                times[contender.name].append(centre(elapsed) / contender.units)
    return times


def _run(operations: Iterable[Operation], timer: Timer) -> list[int]:
    ready = list(operations)
    elapsed = [0] * len(ready)
    # Results are kept to the end of the round, so that their destruction is not timed.
    results: list[object] = [None] * len(ready)
    for index, operation in enumerate(ready):
        began = timer()
        results[index] = operation()
        elapsed[index] = timer() - began
    return elapsed
