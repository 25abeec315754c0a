"""The site's refusals. The tree:

Refused                    400  bad_request
├── BadInput               400  bad_input
├── SignInFirst            401  sign_in_first
├── ElsewhereForm          403  form_from_elsewhere
├── NotInGroup             403  not_in_group
├── SomebodyElse           403  somebody_else
├── Unknown                404  unknown_learner, unknown_exercise, …
├── LearnerExists          409  learner_exists
├── NotEnoughPoints        409  not_enough_points
├── TooEarly               409  too_early
├── ProjectExists          409  project_exists
├── OverQuota              409  over_quota
├── ScreenExists           409  screen_exists
├── AlreadyEnrolled        409  already_enrolled
├── OrderOpen              409  order_open
└── PicturesBusy           503  pictures_busy
"""

from __future__ import annotations

from collections.abc import Collection

from sample_app.words import counted


class Refused(Exception):
    """The request is valid but not carried out. Nothing has changed."""

    status = 400
    code = "bad_request"
    #: Nothing is wrong: the page says so in a notice.
    expected = False


class BadInput(Refused):
    """A field is missing or has an invalid value."""

    code = "bad_input"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class SignInFirst(Refused):
    """The action needs a signed-in user."""

    status = 401
    code = "sign_in_first"

    def __init__(self, who: str) -> None:
        super().__init__(f"Sign in first: choose a {who}.")


class ElsewhereForm(Refused):
    """A page of another site sent the form."""

    status = 403
    code = "form_from_elsewhere"

    def __init__(self) -> None:
        super().__init__("This was sent from another site. Open the page here and send it again.")


class NotInGroup(Refused):
    """A coach can only give points to the coach's own group."""

    status = 403
    code = "not_in_group"

    def __init__(self, learner_ids: Collection[str]) -> None:
        super().__init__(f"Not in this group: {', '.join(sorted(learner_ids))}.")


class SomebodyElse(Refused):
    """Learners act for themselves alone."""

    status = 403
    code = "somebody_else"

    def __init__(self) -> None:
        super().__init__("This is another learner's: sign in as that one.")


class Unknown(Refused):
    """There is no object of this kind with this name."""

    status = 404

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"There is no {what} {name!r:.60}.")
        self.code = f"unknown_{what}"


class LearnerExists(Refused):
    """The id is taken."""

    status = 409
    code = "learner_exists"

    def __init__(self, learner_id: str) -> None:
        super().__init__(f"There already is a learner {learner_id!r}.")


class NotEnoughPoints(Refused):
    """The price is higher than the available points."""

    status = 409
    code = "not_enough_points"

    def __init__(self, what: str, *, price: int, points: int) -> None:
        are = "is" if points == 1 else "are"
        super().__init__(f"{what} costs {counted(price, 'point')}; {points} {are} there to spend.")


class TooEarly(Refused):
    """The learner finished faster than anyone can read."""

    status = 409
    code = "too_early"
    expected = True

    def __init__(self, *, seconds: int, seconds_left: int) -> None:
        super().__init__(
            f"That was quick! This part takes about {seconds} seconds to read: "
            f"{seconds_left} more, please."
        )


class ProjectExists(Refused):
    """The learner has a project of this title."""

    status = 409
    code = "project_exists"

    def __init__(self, title: str) -> None:
        super().__init__(f"There already is a project “{title}”.")


class OverQuota(Refused):
    """The project is above the limit of the plan, or archived: nothing is added to it."""

    status = 409
    code = "over_quota"

    def __init__(self, title: str, *, archived: bool) -> None:
        if archived:
            super().__init__(f"“{title}” is archived: activate it first.")
        else:
            super().__init__(
                f"“{title}” is over the limit of your plan: upgrade, or archive another project."
            )


class ScreenExists(Refused):
    """The project has an active screen of this name."""

    status = 409
    code = "screen_exists"

    def __init__(self, base: str) -> None:
        super().__init__(f"There already is a screen “{base}”: archive that first.")


class AlreadyEnrolled(Refused):
    """The learner has paid for this course."""

    status = 409
    code = "already_enrolled"

    def __init__(self, title: str) -> None:
        super().__init__(f"You have paid for “{title}” already.")


class OrderOpen(Refused):
    """Another request has begun to buy the course, and is not complete."""

    status = 409
    code = "order_open"

    def __init__(self, title: str) -> None:
        super().__init__(
            f"Another request buys “{title}”, and is not complete: send that one again."
        )


class PicturesBusy(Refused):
    """As many pictures as may are being decoded."""

    status = 503
    code = "pictures_busy"

    def __init__(self) -> None:
        super().__init__("Other pictures are being looked at: try again in a moment.")
