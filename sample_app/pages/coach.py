"""The coach's page: an overview of the group, and a bonus for several learners at once."""

from __future__ import annotations

import secrets

import flask
from werkzeug.wrappers import Response

from sample_app import signed_in, validation
from sample_app.errors import BadInput
from sample_app.learning import coaching
from sample_app.pages.blueprint import done, shown_streak, to, views
from sample_app.web import field
from sample_app.words import counted


@views.get("/coach")
def coach() -> str:
    """Show the group. Reads without locks: nothing here is put back."""
    found = coaching.find_coach(signed_in.coach_id())
    return flask.render_template(
        "coach.html",
        coach=found,
        group=coaching.group_of(found),
        shown_streak=shown_streak,
        most=validation.MAX_BONUS,
        longest_word=validation.MAX_WORD_LENGTH,
        # The hand-out's id, so that a form that is sent twice gives once.
        hand_out=secrets.token_urlsafe(12),
    )


@views.post("/coach")
def give_bonus() -> Response:
    """Give the selected learners a bonus: all of them, or none."""
    coach_id = signed_in.coach_id()
    learner_ids = {validation.learner_id(each) for each in flask.request.form.getlist("learner")}
    if not learner_ids:
        raise BadInput("learners", "tick at least one")
    points = validation.number("points", field("points"), least=1, most=validation.MAX_BONUS)
    word = validation.line("word", field("word"), longest=validation.MAX_WORD_LENGTH, empty=True)
    hand_out = validation.line("hand_out", field("hand_out"), longest=40)
    if coaching.give_bonus(coach_id, learner_ids, points, word, hand_out=hand_out):
        many = f"{len(learner_ids)} learners" if len(learner_ids) > 1 else "one learner"
        done(f"{counted(points, 'point')} each for {many}.")
    else:
        done("This bonus was already given; it counts once.")
    return to("views.coach")
