"""The coach's page: an overview of the group, and a bonus for several learners at once."""

from __future__ import annotations

import flask
from werkzeug.wrappers import Response

from sample_app import signed_in, validation
from sample_app.errors import BadInput
from sample_app.flows import form_key, once
from sample_app.learning import coaching
from sample_app.pages.blueprint import report, shown_streak, to, views
from sample_app.web import field
from sample_app.words import counted
from userlock.idempotency import Flow


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
    with coaching.locks(coach_id, learner_ids):
        answer = _give(learner_ids, points, word)
    many = f"{len(learner_ids)} learners" if len(learner_ids) > 1 else "one learner"
    report(answer, lambda told: f"{counted(told['points'], 'point')} each for {many}.")
    return to("views.coach")


@once("bonus", user=signed_in.coach_id, key=form_key)
def _give(flow: Flow, learner_ids: set[str], points: int, word: str) -> None:
    coaching.give_bonus(flow, learner_ids, points, word)
