"""What the site refuses, and why. The tree:

Refused               400  bad_request
├─ BadInput           400  bad_input
├─ Unknown            404  unknown_learner, unknown_exercise, …
├─ LearnerExists      409  learner_exists
└─ NotEnoughPoints    409  not_enough_points
"""

from __future__ import annotations


class Refused(Exception):
    """The request was understood and is not carried out; nothing has changed."""

    status = 400
    code = "bad_request"


class BadInput(Refused):
    """A field is missing or has a value that makes no sense."""

    code = "bad_input"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Unknown(Refused):
    """There is nothing of this kind with this name."""

    status = 404

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"There is no {what} {name!r}.")
        self.code = f"unknown_{what}"


class LearnerExists(Refused):
    """Somebody has this id already."""

    status = 409
    code = "learner_exists"

    def __init__(self, learner_id: str) -> None:
        super().__init__(f"There already is a learner {learner_id!r}.")


class NotEnoughPoints(Refused):
    """The certificate costs more points than the learner has."""

    status = 409
    code = "not_enough_points"

    def __init__(self, *, price: int, points: int) -> None:
        super().__init__(f"This certificate costs {price} points; {points} are there to spend.")
