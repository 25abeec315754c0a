"""Signing in, by choosing a name, and signing out."""

from __future__ import annotations

from werkzeug.wrappers import Response

from sample_app import signed_in, validation
from sample_app.learning import coaching, learners
from sample_app.pages.blueprint import to, to_wanted, views
from sample_app.web import field


@views.post("/sign-in")
def sign_in() -> Response:
    """Sign in as a learner or, with `coach`, as a coach. Leads to the page that was asked for."""
    coach = field("coach")
    if coach is not None:
        coach_id = validation.line("coach", coach, longest=validation.MAX_ID_LENGTH)
        signed_in.sign_in(coaching.find_coach(coach_id))
    else:
        learner_id = validation.learner_id(field("learner"))
        signed_in.sign_in(learners.find_learner(learner_id))
    return to_wanted()


@views.post("/sign-out")
def sign_out() -> Response:
    """Sign out and return to the list of names."""
    signed_in.sign_out()
    return to("views.home")
