"""The figures of a report: percentiles, ratios, records."""

from __future__ import annotations

import dataclasses
import enum
import math
import statistics
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the values are, interpolated between neighbours."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    lower = math.floor(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)


def jain(shares: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 if all have the same, 1/n if one of n has everything.

    Source: Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems" (1984): (Σx)² / (n · Σx²).
    """
    squares = sum(share * share for share in shares)
    if not squares:
        raise ValueError("nobody has anything")
    return float(sum(shares) ** 2 / (len(shares) * squares))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A multiple of the baseline: the median of the rounds' ratios, and their spread."""

    baseline: str
    value: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float], baseline: str, baseline_values: Sequence[float]) -> Ratio:
        """Compute the ratio of times that were taken round by round."""
        ratios = [value / base for value, base in zip(values, baseline_values, strict=True)]
        return cls(
            baseline=baseline,
            value=statistics.median(ratios),
            p10=percentile(ratios, 10),
            p90=percentile(ratios, 90),
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One figure of one contender.

    Attributes:
        contender: the contender.
        metric: the measured quantity.
        value, unit: the figure; units are `us`, `ms`, `s`, `bytes`, `requests`, `percent`,
            `per second`, `cores`, `count`, and `index` for a number from 0 to 1.
        ratio: to the table's baseline, where there is one.
        samples: number of values behind it; 0 if that is meaningless.
        at_least: the true figure is more than `value`; the measurement was cut short.
    """

    contender: str
    metric: str
    value: float
    unit: str
    ratio: Ratio | None = None
    samples: int = 0
    at_least: bool = False


class RatioStyle(enum.Enum):
    """The format of a ratio of 1.05 in a table."""

    TIMES = "times"  # 1.05
    OVERHEAD = "overhead"  # +5.0 %


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of comparable figures: a row per contender, a column per metric."""

    title: str
    measurements: tuple[Measurement, ...]
    style: RatioStyle = RatioStyle.TIMES


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """The tables of one question, with a short description of the method.

    Attributes:
        notes: remarks for the reader, on missing contenders and failures.
        waits: for a plot: by contender, the length of each wait for the lock, in seconds.
    """

    name: str
    title: str
    method: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    waits: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)


def compared(
    times: Mapping[str, Sequence[float]], *, metric: str, baseline: str, added: bool = False
) -> tuple[Measurement, ...]:
    """Convert interleaved times in nanoseconds to figures in microseconds, with the baseline's.

    Args:
        times: by contender, round by round, as `runner.interleave` gives them.
        metric: the measured operation.
        baseline: the contender that the others are compared with.
        added: whether to include the others' additional time over the baseline.
    """
    base = times[baseline]
    found = []
    for contender, values in times.items():
        ratio = None if contender == baseline else Ratio.of(values, baseline, base)
        value = statistics.median(values) / 1000
        found.append(
            Measurement(
                contender=contender,
                metric=metric,
                value=value,
                unit="us",
                ratio=ratio,
                samples=len(values),
            )
        )
        if added and contender != baseline:
            more = [mine - theirs for mine, theirs in zip(values, base, strict=True)]
            found.append(
                Measurement(
                    contender=contender,
                    metric="added",
                    value=statistics.median(more) / 1000,
                    unit="us",
                    samples=len(values),
                )
            )
    return tuple(found)
