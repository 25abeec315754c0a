"""Retries: the pauses between the attempts of a job, and its tier. No I/O."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping

from userlock.numbers import check_count, check_number


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """The retries of a job: exponential, with jitter, bounded. By the outbox's own clock, so that
    they are the same on every engine.

        Retry(attempts=5, first_seconds=10)            # after 10, 20, 40, 80 s; then dead
        Retry(tiers={3: "slow"})                       # from the third failure on by that tier

    Attributes:
        attempts: the runs that may fail before the job is dead. A run that ends with its process
            counts too.
        first_seconds: the pause after the first failure.
        factor: by how much each pause is longer than the one before.
        most_seconds: the longest pause.
        jitter: the part of a pause that is random, from 0 to 1, so that jobs that failed together
            are not tried together.
        tiers: the tier from so many failures on.

    Raises:
        TypeError, ValueError: a number is none, or out of its range.
    """

    attempts: int = 12
    first_seconds: float = 5.0
    factor: float = 2.0
    most_seconds: float = 3600.0
    jitter: float = 0.5
    tiers: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        ranges = {
            "attempts": (1, 1000),
            "first_seconds": (0, 86_400),
            "factor": (1, 100),
            "most_seconds": (0, 30 * 86_400),
            "jitter": (0, 1),
        }
        for name, (least, most) in ranges.items():
            check = check_count if name == "attempts" else check_number
            check(f"Retry: {name}", getattr(self, name), least=least, most=most)
        for failures, tier in self.tiers.items():
            if not isinstance(failures, int) or failures < 1 or not isinstance(tier, str):
                raise ValueError(
                    f"Retry: tiers name a tier from so many failures on, as {{3: 'slow'}}, not "
                    f"{{{failures!r}: {tier!r}}}"
                )

    def pause(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Return the pause after so many failures, in seconds."""
        exponent = min(failures - 1, 64)
        whole = min(self.first_seconds * self.factor**exponent, self.most_seconds)
        return whole * (1 - self.jitter * chance())

    def tier(self, failures: int, default: str) -> str:
        """Return the tier after so many failures."""
        reached = [each for each in self.tiers if each <= failures]
        return self.tiers[max(reached)] if reached else default
