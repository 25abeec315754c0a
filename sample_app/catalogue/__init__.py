"""The exercises, videos and courses. Fixed, so that the site needs no editor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sample_app.catalogue.exercises import EXERCISES
from sample_app.catalogue.things import Course, Exercise, PaidCourse, Part, Question, Video
from sample_app.catalogue.videos import VIDEOS
from sample_app.errors import Unknown

__all__ = [
    "COURSES",
    "EXERCISES",
    "PAID_COURSES",
    "VIDEOS",
    "Course",
    "Exercise",
    "PaidCourse",
    "Part",
    "Question",
    "Video",
    "course",
    "exercise",
    "paid_course",
    "video",
]

COURSES = (
    Course("numbers", "Everyday numbers", 60),
    Course("sky", "Reading the sky", 90),
)

PAID_COURSES = (
    PaidCourse("stars", "Stars by naked eye", 2900),
    PaidCourse("dials", "A sundial in a weekend", 4500),
)


class _Named(Protocol):
    @property
    def slug(self) -> str: ...


_T = TypeVar("_T", bound=_Named)


def exercise(slug: str) -> Exercise:
    """Return the exercise of this name, or raise `Unknown`."""
    return _find("exercise", EXERCISES, slug)


def video(slug: str) -> Video:
    """Return the video of this name, or raise `Unknown`."""
    return _find("video", VIDEOS, slug)


def course(slug: str) -> Course:
    """Return the course of this name, or raise `Unknown`."""
    return _find("course", COURSES, slug)


def paid_course(slug: str) -> PaidCourse:
    """Return the paid course of this name, or raise `Unknown`."""
    return _find("course", PAID_COURSES, slug)


def _find(what: str, things: Sequence[_T], slug: str) -> _T:
    for thing in things:
        if thing.slug == slug:
            return thing
    raise Unknown(what, slug)
