"""The certificates' buttons on the front page."""

from __future__ import annotations

from typing import Any

from werkzeug.wrappers import Response

from sample_app import catalogue, signed_in
from sample_app.flows import form_key, once
from sample_app.learning import certificates
from sample_app.pages.blueprint import report, to, views
from sample_app.web import field, today
from userlock.idempotency import Flow


@views.post("/certificates")
def award_certificate() -> Response:
    """Spend points on a certificate."""
    report(_award(), _words)
    return to("views.home")


def _words(told: dict[str, Any]) -> str:
    course = catalogue.course(told["certificate"])
    if told["new"]:
        return f"Certificate “{course.title}” awarded for {course.price} points."
    return f"You already have the certificate “{course.title}”."


@once("certificate", user=signed_in.learner_id, key=form_key)
def _award(flow: Flow) -> None:
    certificates.award_certificate(flow, catalogue.course(str(field("course"))), today())
