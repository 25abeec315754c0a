"""The certificates' buttons on the front page."""

from __future__ import annotations

from werkzeug.wrappers import Response

from sample_app import catalogue, signed_in
from sample_app.learning import certificates
from sample_app.pages.blueprint import done, to, views
from sample_app.web import field


@views.post("/certificates")
def award_certificate() -> Response:
    """Spend points on a certificate."""
    course = catalogue.course(str(field("course")))
    _, new = certificates.award_certificate(signed_in.learner_id(), course)
    done(
        f"Certificate “{course.title}” awarded for {course.price} points."
        if new
        else f"You already have the certificate “{course.title}”."
    )
    return to("views.home")
