"""The exercises, videos and courses. Fixed, so that the site needs no editor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sample_app.catalogue.exercises import EXERCISES
from sample_app.catalogue.things import Course, Exercise, Part, Question, Video
from sample_app.catalogue.videos import VIDEOS
from sample_app.errors import Unknown

__all__ = [
    "COURSES",
    "EXERCISES",
    "VIDEOS",
    "Course",
    "Exercise",
    "Part",
    "Question",
    "Video",
    "course",
    "exercise",
    "video",
]

COURSES = (
    Course("numbers", "Everyday numbers", 60),
    Course("sky", "Reading the sky", 90),
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


def _find(what: str, things: Sequence[_T], slug: str) -> _T:
    for thing in things:
        if thing.slug == slug:
            return thing
    raise Unknown(what, slug)
