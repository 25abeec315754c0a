"""What the catalogue is made of. Pure: no Datastore, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: How fast people read English prose to themselves, on average (Brysbaert 2019).
WORDS_PER_MINUTE = 238
#: Who is done in less than this share of the time has not read it.
FASTEST = 0.5
POINTS_PER_PART = 2


@dataclass(frozen=True)
class Question:
    """A question with one right answer among `choices`; `why` is told to those who missed it."""

    text: str
    choices: tuple[str, ...]
    right: int
    why: str


@dataclass(frozen=True)
class Exercise:
    """A few questions, worth a fixed number of points once all are answered right."""

    slug: str
    title: str
    points: int
    questions: tuple[Question, ...]

    def mark(self, answers: Sequence[int | None]) -> tuple[bool, ...]:
        """Which of the answers (the numbers of the choices, from 0; None for none) are right."""
        if len(answers) != len(self.questions):
            raise ValueError(f"{len(answers)} answers to {len(self.questions)} questions")
        return tuple(
            answer == question.right
            for answer, question in zip(answers, self.questions, strict=True)
        )


@dataclass(frozen=True)
class Part:
    """A paragraph, and how long it takes to read: measured by its words."""

    text: str

    @property
    def seconds(self) -> int:
        """What most people need."""
        return math.ceil(len(self.text.split()) * 60 / WORDS_PER_MINUTE)

    @property
    def least_seconds(self) -> int:
        """What the fastest need."""
        return math.ceil(self.seconds * FASTEST)


@dataclass(frozen=True)
class Video:
    """A film that is told in words, part by part, at the reader's own pace."""

    slug: str
    title: str
    parts: tuple[Part, ...]

    @property
    def seconds(self) -> int:
        """How long all of it takes to read."""
        return sum(part.seconds for part in self.parts)


@dataclass(frozen=True)
class Course:
    """Something one can have a certificate of, for `price` points."""

    slug: str
    title: str
    price: int
