"""What is measured, as figures: percentiles, ratios, and the records of a report."""

from __future__ import annotations

import dataclasses
import enum
import math
import statistics
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated between neighbours."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    lower = math.floor(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """How many times the baseline: the median of the rounds' ratios, and their spread."""

    baseline: str
    value: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float], baseline: str, baseline_values: Sequence[float]) -> Ratio:
        """The ratio of times that were taken round by round."""
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
        contender: whose.
        metric: of what.
        value, unit: the figure; units are `us`, `ms`, `bytes`, `operations`.
        ratio: to the table's baseline, where there is one.
        samples: how many values stand behind it; 0 where that makes no sense.
    """

    contender: str
    metric: str
    value: float
    unit: str
    ratio: Ratio | None = None
    samples: int = 0


class RatioStyle(enum.Enum):
    """How a table writes a ratio of 1.05."""

    TIMES = "times"  # 1.05
    OVERHEAD = "overhead"  # +5.0 %


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Figures that belong side by side: a row per contender, a column per metric."""

    title: str
    measurements: tuple[Measurement, ...]
    style: RatioStyle = RatioStyle.TIMES


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """The tables of one question, with a few words on how it was asked."""

    name: str
    title: str
    method: str
    tables: tuple[Table, ...]


def compared(
    times: Mapping[str, Sequence[float]], *, metric: str, baseline: str, added: bool = False
) -> tuple[Measurement, ...]:
    """Interleaved times in nanoseconds as figures in microseconds, beside the baseline's.

    Args:
        times: by contender, round by round, as `runner.interleave` gives them.
        metric: what was timed.
        baseline: the contender that the others are held against.
        added: whether to give also what the others take more than the baseline.
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
