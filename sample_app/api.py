"""The JSON endpoints: one for each action of a learner, and the health check."""

from __future__ import annotations

import os

import flask
from google.cloud import ndb

from sample_app import catalogue, signed_in, validation
from sample_app.errors import Unknown
from sample_app.flows import WAIT_SECONDS, once
from sample_app.learning import certificates, courses, exercises, learners, videos
from sample_app.models import Learner
from sample_app.web import field, now, today
from userlock.idempotency import Flow

api = flask.Blueprint("api", __name__)


@api.before_request
def _check_learner() -> None:
    """Refuse strangers, before a lock or an idempotency key of the learner in the address."""
    if "learner_id" in (flask.request.view_args or {}):
        signed_in.check_learner(_of_address())


@api.post("/api/learners")
def create() -> tuple[flask.Response, int]:
    """Add a learner: `name`, and `id` unless it can be derived from the name."""
    name = validation.name(field("name"))
    given = field("id")
    learner_id = validation.id_from_name(name) if given is None else validation.learner_id(given)
    learner = learners.create_learner(learner_id, name)
    return _learner(learner), 201


@api.get("/api/learners/<learner_id>")
def show(learner_id: str) -> flask.Response:
    """Return a learner."""
    return _learner(learners.find_learner(validation.learner_id(learner_id)))


@api.post("/api/learners/<learner_id>/exercises/<exercise>/answers")
def answer_exercise(learner_id: str, exercise: str) -> flask.Response:
    """Answer an exercise: `answers` is a list of the choices' numbers, from 0."""
    asked = catalogue.exercise(exercise)
    answers = validation.answers(field("answers"), asked)
    learner_id = validation.learner_id(learner_id)
    marked = exercises.answer_exercise(learner_id, asked, answers, today())
    return _learner(
        learners.find_learner(learner_id), right=marked.right, points_earned=marked.points
    )


@api.post("/api/learners/<learner_id>/exercises/<exercise>/finish")
def finish_exercise(learner_id: str, exercise: str) -> flask.Response:
    """Count a round of this exercise that the learner did elsewhere; each one counts."""
    learner, points = exercises.finish_exercise(
        validation.learner_id(learner_id), catalogue.exercise(exercise), today()
    )
    return _learner(learner, points_earned=points)


@api.post("/api/learners/<learner_id>/videos/<video>/begin")
def begin_video(learner_id: str, video: str) -> flask.Response:
    """Begin this video for the learner."""
    learner = videos.begin_video(validation.learner_id(learner_id), catalogue.video(video), now())
    return _learner(learner)


@api.post("/api/learners/<learner_id>/videos/<video>/parts/<part>/finish")
def finish_part(learner_id: str, video: str, part: str) -> flask.Response:
    """Record that the learner has read this part of the video, counted from 0."""
    number = validation.number("part", part, least=0, most=validation.MAX_PART)
    learner, points = videos.finish_part(
        validation.learner_id(learner_id), catalogue.video(video), number, now()
    )
    return _learner(learner, points_earned=points)


def _of_address() -> str:
    return validation.learner_id((flask.request.view_args or {})["learner_id"])


@api.post("/api/learners/<learner_id>/certificates/<course>")
@once("api-certificate", user=_of_address)
def award_certificate(flow: Flow, learner_id: str, course: str) -> None:
    """Spend points on a certificate: 201, or 200 if the learner already has it."""
    certificates.award_certificate(flow, catalogue.course(course), today())


@api.post("/api/learners/<learner_id>/courses/<course>/orders")
@once("api-buy-course", user=_of_address, wait_timeout=WAIT_SECONDS, completable=True)
def buy_course(flow: Flow, learner_id: str, course: str) -> None:
    """Buy a paid course: 201, 402 if the card is declined, 503 while the provider is in trouble."""
    if not flask.current_app.config["PAYMENT_PROVIDER"]:
        raise Unknown("course", course)
    courses.buy_course(flow, catalogue.paid_course(course))


@api.get("/healthz")
def healthz() -> flask.Response:
    """Return 200 if this process can read from Datastore.

    Ignores memcached on purpose: the site serves without it, so a load balancer must keep the
    process.
    """
    ndb.Key(Learner, "healthz").get(use_cache=False, timeout=2, retries=0)
    return flask.jsonify(status="ok", pid=os.getpid())


def _learner(learner: Learner, **more: object) -> flask.Response:
    return flask.jsonify({"learner": learner.as_json(today()), **more})
