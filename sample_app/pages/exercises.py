"""An exercise: its questions, and the result."""

from __future__ import annotations

import flask
from werkzeug.wrappers import Response

from sample_app import catalogue, signed_in
from sample_app.learning import exercises, learners
from sample_app.pages.blueprint import done, to, views
from sample_app.web import today


@views.get("/exercises/<slug>")
def exercise(slug: str) -> str:
    """Show the questions."""
    asked = catalogue.exercise(slug)
    return _page(asked, [None] * len(asked.questions))


@views.post("/exercises/<slug>")
def answer_exercise(slug: str) -> str | Response:
    """Award points if all is right; else show the questions again, with explanations."""
    asked = catalogue.exercise(slug)
    answers = _answers(asked)
    marked = exercises.answer_exercise(signed_in.learner_id(), asked, answers, today())
    if not marked.all_right:
        return _page(asked, answers, marked)
    if marked.points:
        done(f"All right! “{asked.title}” is finished: {marked.points} points.")
    else:
        done(f"All right again. “{asked.title}” has its points for today already.")
    return to("views.exercise", slug=slug)


def _answers(asked: catalogue.Exercise) -> list[int | None]:
    """Return the selected answers. An invalid choice counts as none."""
    form = flask.request.form
    chosen = [form.get(f"question-{number}", "") for number in range(len(asked.questions))]
    return [
        int(each) if each in map(str, range(len(question.choices))) else None
        for each, question in zip(chosen, asked.questions, strict=True)
    ]


def _page(
    asked: catalogue.Exercise,
    answers: list[int | None],
    marked: exercises.Marked | None = None,
) -> str:
    learner = learners.find_learner(signed_in.learner_id())
    return flask.render_template(
        "exercise.html",
        exercise=asked,
        answers=answers,
        marked=marked,
        done_today=learner.has_done(asked.slug, today()),
    )
