"""The front page: the choice of a learner, or the signed-in learner's activities."""

from __future__ import annotations

import flask
from google.api_core.exceptions import InvalidArgument
from google.cloud import ndb
from werkzeug.wrappers import Response

from sample_app import catalogue, signed_in, validation
from sample_app.learning import learners, projects
from sample_app.models import Certificate, Coach, Learner
from sample_app.pages.blueprint import done, of_learner, shown_streak, to, to_wanted, views
from sample_app.web import field, today

LEARNERS_PER_PAGE = 24


@views.get("/")
def home() -> str | Response:
    """Show the learner's own page, or the list to choose from."""
    if "coach_id" in flask.session:
        return to("views.coach")
    if "learner_id" not in flask.session:
        return _choice()
    learner = Learner.get_by_id(signed_in.learner_id())
    if learner is None:  # deleted, for example by a restart of the emulator
        signed_in.sign_out()
        return _choice()
    return flask.render_template(
        "today.html",
        **of_learner(learner),
        today=today(),
        exercises=catalogue.EXERCISES,
        videos=catalogue.VIDEOS,
        courses=catalogue.COURSES,
        certificates=_certificates(learner.id),
        projects=[each for each in projects.projects_of(learner.id) if each.active],
    )


@views.post("/learners")
def create() -> Response:
    """Add a learner and sign in."""
    name = validation.name(field("name"))
    learner = learners.create_learner(validation.id_from_name(name), name)
    signed_in.sign_in(learner)
    done(f"Welcome, {learner.name}.")
    return to_wanted()


def _choice() -> str:
    after = flask.request.args.get("after", "")
    found, next_page = _page_of_learners(after)
    return flask.render_template(
        "choice.html",
        learners=found,
        coaches=Coach.query().order(Coach.name).fetch(LEARNERS_PER_PAGE),
        next_page=next_page,
        first_page=not after,
        shown_streak=shown_streak,
    )


def _certificates(learner_id: str) -> set[str]:
    """Return the courses that this learner has a certificate for."""
    keys = [Certificate.key_of(learner_id, course.slug) for course in catalogue.COURSES]
    return {each.course for each in ndb.get_multi(keys) if each}


def _page_of_learners(after: str) -> tuple[list[Learner], str | None]:
    """Return learners by name, and the next page's cursor. An invalid `after` is a 404."""
    try:
        start = ndb.Cursor(urlsafe=after.encode("ascii")) if after else None
        found, cursor, more = (
            Learner.query().order(Learner.name).fetch_page(LEARNERS_PER_PAGE, start_cursor=start)
        )
    except (ValueError, InvalidArgument):  # not a cursor, or not Datastore's
        flask.abort(404)
    return found, cursor.urlsafe().decode() if more and cursor else None
