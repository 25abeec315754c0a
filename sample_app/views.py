"""The pages. Every form works without JavaScript: POST, redirect, GET."""

from __future__ import annotations

import flask
from google.api_core.exceptions import InvalidArgument
from google.cloud import ndb
from werkzeug.wrappers import Response

from sample_app import badges, catalogue, learning, lock_notes, streaks, validation
from sample_app.models import Certificate, ExerciseLog, Learner, VideoLog
from sample_app.tasks import award_badges
from sample_app.web import field, today

views = flask.Blueprint("views", __name__)

LEARNERS_PER_PAGE = 24
LOG_LINES = 8


@views.get("/")
def home() -> str:
    """All learners, a page at a time, and a form to add one."""
    after = flask.request.args.get("after", "")
    learners, next_page = _page_of_learners(after)
    return flask.render_template(
        "home.html",
        learners=learners,
        next_page=next_page,
        first_page=not after,
        shown_streak=_shown_streak,
    )


@views.post("/learners")
def create() -> Response:
    """Add a learner and show the new page."""
    name = validation.name(field("name"))
    learner = learning.create_learner(validation.id_from_name(name), name)
    _done(f"Welcome, {learner.name}.")
    return _to_learner(learner.id)


@views.get("/learners/<learner_id>")
def learner(learner_id: str) -> str:
    """Everything about one learner. Reads without the lock: nothing here is put back."""
    person = learning.find_learner(validation.learner_id(learner_id))
    return flask.render_template(
        "learner.html",
        learner=person,
        streak=_shown_streak(person),
        badges=badges.BADGES,
        exercises=catalogue.EXERCISES,
        videos=catalogue.VIDEOS,
        courses=catalogue.COURSES,
        exercise_titles={each.slug: each.title for each in catalogue.EXERCISES},
        video_titles={each.slug: each.title for each in catalogue.VIDEOS},
        certificates={each.course for each in _latest(Certificate, learner_id)},
        exercise_log=_latest(ExerciseLog, learner_id),
        video_log=_latest(VideoLog, learner_id),
    )


@views.post("/learners/<learner_id>/exercises")
def finish_exercise(learner_id: str) -> Response:
    """The button next to an exercise."""
    exercise = catalogue.exercise(str(field("exercise")))
    _, points = learning.finish_exercise(validation.learner_id(learner_id), exercise, today())
    _done(f"“{exercise.title}” finished: {points} points.")
    return _to_learner(learner_id)


@views.post("/learners/<learner_id>/videos")
def watch_video(learner_id: str) -> Response:
    """The form next to a video."""
    video = catalogue.video(str(field("video")))
    seconds = validation.seconds(field("seconds"), longest=video.seconds)
    _, points = learning.watch_video(validation.learner_id(learner_id), video, seconds, today())
    _done(f"Watched {seconds} s of “{video.title}”: {points} points.")
    return _to_learner(learner_id)


@views.post("/learners/<learner_id>/certificates")
def award_certificate(learner_id: str) -> Response:
    """The button next to a certificate."""
    course = catalogue.course(str(field("course")))
    _, new = learning.award_certificate(validation.learner_id(learner_id), course)
    _done(
        f"Certificate “{course.title}” awarded for {course.price} points."
        if new
        else f"The certificate “{course.title}” is there already."
    )
    return _to_learner(learner_id)


@views.post("/badge-job")
def run_badge_job() -> Response:
    """The nightly job, for those who do not want to wait for the night."""
    run = award_badges()
    flask.flash(
        f"Badge job done in {run.seconds:.2f} s: new badges {run.badges_awarded},"
        f" learners {run.learners}, longest wait for a lock {run.longest_wait_ms:.0f} ms.",
        "done",
    )
    return flask.redirect(flask.url_for("views.home"), 303)


def _done(message: str) -> None:
    flask.flash(f"{message} {lock_notes.in_words()}", "done")


def _to_learner(learner_id: str) -> Response:
    return flask.redirect(flask.url_for("views.learner", learner_id=learner_id), 303)


def _shown_streak(learner: Learner) -> int:
    return streaks.as_of(learner.streak, learner.last_active, today())


def _latest(kind: type[ndb.Model], learner_id: str) -> list[ndb.Model]:
    query = kind.query(kind.learner_id == learner_id).order(-kind.at)
    return list(query.fetch(LOG_LINES))


def _page_of_learners(after: str) -> tuple[list[Learner], str | None]:
    """Learners by name, and where the next page begins; a made-up `after` is a 404."""
    try:
        start = ndb.Cursor(urlsafe=after.encode("ascii")) if after else None
        learners, cursor, more = (
            Learner.query().order(Learner.name).fetch_page(LEARNERS_PER_PAGE, start_cursor=start)
        )
    except (ValueError, InvalidArgument):  # no cursor to us, or none to Datastore
        flask.abort(404)
    return learners, cursor.urlsafe().decode() if more and cursor else None
