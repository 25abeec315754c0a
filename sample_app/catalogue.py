"""What there is to learn. Fixed, so that the site needs no editor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sample_app.errors import Unknown

SECONDS_PER_POINT = 30


@dataclass(frozen=True)
class Exercise:
    """A set of questions, worth a fixed number of points each time."""

    slug: str
    title: str
    points: int


@dataclass(frozen=True)
class Video:
    """A film of `seconds`, worth one point for each half minute watched."""

    slug: str
    title: str
    seconds: int

    @property
    def length(self) -> str:
        """The running time as people write it: 4:05."""
        return f"{self.seconds // 60}:{self.seconds % 60:02}"

    def points_for(self, seconds: int) -> int:
        """Points for watching `seconds` of it."""
        return seconds // SECONDS_PER_POINT


@dataclass(frozen=True)
class Course:
    """Something one can have a certificate of, for `price` points."""

    slug: str
    title: str
    price: int


EXERCISES = (
    Exercise("fractions", "Halves, thirds, quarters", 10),
    Exercise("angles", "Angles on a clock face", 10),
    Exercise("primes", "Hunting for primes", 15),
    Exercise("moon-phases", "Which moon is it tonight?", 5),
    Exercise("leap-years", "When February has 29 days", 20),
)

VIDEOS = (
    Video("sundials", "How a sundial tells the time", 180),
    Video("tides", "Why the sea goes out", 245),
    Video("seasons", "What makes the seasons", 420),
    Video("calendars", "Eleven days that never were", 600),
)

COURSES = (
    Course("numbers", "Everyday numbers", 60),
    Course("sky", "Reading the sky", 90),
)


class _Named(Protocol):
    @property
    def slug(self) -> str: ...


_T = TypeVar("_T", bound=_Named)


def exercise(slug: str) -> Exercise:
    """The exercise of this name, or `Unknown`."""
    return _find("exercise", EXERCISES, slug)


def video(slug: str) -> Video:
    """The video of this name, or `Unknown`."""
    return _find("video", VIDEOS, slug)


def course(slug: str) -> Course:
    """The course of this name, or `Unknown`."""
    return _find("course", COURSES, slug)


def _find(what: str, things: Sequence[_T], slug: str) -> _T:
    for thing in things:
        if thing.slug == slug:
            return thing
    raise Unknown(what, slug)
