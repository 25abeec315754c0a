"""A video in words: begun, then read part by part."""

from __future__ import annotations

import flask
from werkzeug.wrappers import Response

from sample_app import catalogue, signed_in, validation
from sample_app.learning import learners, videos
from sample_app.pages.blueprint import done, to, views
from sample_app.web import field, now


@views.get("/videos/<slug>")
def video(slug: str) -> str:
    """Show the parts that were read, and the next one."""
    shown = catalogue.video(slug)
    learner = learners.find_learner(signed_in.learner_id())
    return flask.render_template(
        "video.html", video=shown, viewing=learner.viewing(slug), learner=learner
    )


@views.post("/videos/<slug>")
def read_on(slug: str) -> Response:
    """Begin, or finish a part (`part`, from 0) and continue with the next."""
    shown = catalogue.video(slug)
    learner_id = signed_in.learner_id()
    if field("part") is None:
        videos.begin_video(learner_id, shown, now())
        return to("views.video", slug=slug, _anchor="part-1")
    part = validation.number("part", field("part"), least=0, most=len(shown.parts) - 1)
    _, points = videos.finish_part(learner_id, shown, part, now())
    if part + 1 < len(shown.parts):
        return to("views.video", slug=slug, _anchor=f"part-{part + 2}")
    if points:
        done(f"That was “{shown.title}”. It stays here to be read again.")
    return to("views.video", slug=slug)
