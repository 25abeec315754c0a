"""Badges and their rules. Pure: no Datastore, no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol


class Progress(Protocol):
    """The input of a rule."""

    @property
    def best_streak(self) -> int: ...
    @property
    def exercises_done(self) -> int: ...
    @property
    def seconds_watched(self) -> int: ...


@dataclass(frozen=True)
class Badge:
    """A badge. Once earned, it is kept."""

    slug: str
    title: str
    rule: str
    earned_by: Callable[[Progress], bool]


BADGES = (
    Badge("first-step", "First step", "Finish an exercise", lambda p: p.exercises_done >= 1),
    Badge("steady", "Steady", "Three days in a row", lambda p: p.best_streak >= 3),
    Badge("full-week", "Full week", "Seven days in a row", lambda p: p.best_streak >= 7),
    Badge("film-buff", "Film buff", "Three minutes of videos", lambda p: p.seconds_watched >= 180),
    Badge("dozen", "By the dozen", "Finish twelve exercises", lambda p: p.exercises_done >= 12),
)


def newly_earned(progress: Progress, have: Collection[str]) -> list[str]:
    """Return the slugs of the newly earned badges, without those in `have`, in the order above."""
    return [badge.slug for badge in BADGES if badge.slug not in have and badge.earned_by(progress)]
