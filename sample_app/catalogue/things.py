"""The types of the catalogue. Pure: no Datastore, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: The average speed of silent reading of English prose (Brysbaert 2019).
WORDS_PER_MINUTE = 238
#: A reader who needs less than this share of the time has not read the text.
FASTEST = 0.5
POINTS_PER_PART = 2


@dataclass(frozen=True)
class Question:
    """A question with one right answer among `choices`. Learners who miss it see `why`."""

    text: str
    choices: tuple[str, ...]
    right: int
    why: str


@dataclass(frozen=True)
class Exercise:
    """A few questions, worth a fixed number of points once all answers are right."""

    slug: str
    title: str
    points: int
    questions: tuple[Question, ...]

    def mark(self, answers: Sequence[int | None]) -> tuple[bool, ...]:
        """Return which answers are right. Answers are choice numbers from 0, or None."""
        if len(answers) != len(self.questions):
            raise ValueError(f"{len(answers)} answers to {len(self.questions)} questions")
        return tuple(
            answer == question.right
            for answer, question in zip(answers, self.questions, strict=True)
        )


@dataclass(frozen=True)
class Part:
    """A paragraph. Its reading time follows from its number of words."""

    text: str

    @property
    def seconds(self) -> int:
        """Return the average reading time."""
        return math.ceil(len(self.text.split()) * 60 / WORDS_PER_MINUTE)

    @property
    def least_seconds(self) -> int:
        """Return the reading time of the fastest readers."""
        return math.ceil(self.seconds * FASTEST)


@dataclass(frozen=True)
class Video:
    """A film in words, read part by part at the learner's own pace."""

    slug: str
    title: str
    parts: tuple[Part, ...]

    @property
    def seconds(self) -> int:
        """Return the reading time of all parts."""
        return sum(part.seconds for part in self.parts)


@dataclass(frozen=True)
class PaidCourse:
    """A course with a teacher, which costs money."""

    slug: str
    title: str
    cents: int


@dataclass(frozen=True)
class Course:
    """A course whose certificate costs `price` points."""

    slug: str
    title: str
    price: int
