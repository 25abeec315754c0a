"""Screens of a project: the upload, each one's page with its versions, and the pictures."""

from __future__ import annotations

import flask
from werkzeug.wrappers import Response

from sample_app import pictures, signed_in, validation
from sample_app.errors import BadInput, Unknown
from sample_app.learning import projects, screens
from sample_app.pages.blueprint import done, to, views
from sample_app.web import field

#: Of a form with a picture, for the rest of it.
_REST_BYTES = 64 * 1024


@views.post("/projects/<project_id>/screens")
def upload_screen(project_id: str) -> Response:
    """Store an uploaded picture."""
    flask.request.max_content_length = pictures.MOST_BYTES + _REST_BYTES
    learner_id, project = _project(project_id)
    sent = flask.request.files.get("file")
    if sent is None or not sent.filename:
        raise BadInput("file", "choose a picture")
    name = validation.file_name(sent.filename)
    picture = pictures.checked(sent.read(pictures.MOST_BYTES + 1))
    screen = screens.upload(learner_id, project, name, picture)
    if screen.latest == 1:
        done(f"“{screen.base}” is a new screen.")
    else:
        done(f"{name} is version {screen.latest} of the screen “{screen.base}”.")
    return to("views.project", project_id=project)


@views.get("/projects/<project_id>/screens")
def back_to_screens(project_id: str) -> Response:
    """Lead back to the page of a form that was refused."""
    return to("views.project", project_id=project_id)


@views.get("/projects/<project_id>/screens/<screen_id>")
def screen(project_id: str, screen_id: str) -> str:
    """Show a screen with its versions."""
    learner_id, number = _project(project_id)
    project = projects.find_project(learner_id, number)
    found = screens.find_screen(learner_id, number, _screen(screen_id))
    return flask.render_template(
        "screen.html", project=project, screen=found, versions=screens.versions_of(found)
    )


@views.post("/projects/<project_id>/screens/<screen_id>")
def change_screen(project_id: str, screen_id: str) -> Response:
    """Archive or activate a screen, depending on `state`."""
    state = field("state")
    if state not in ("active", "archived"):
        raise BadInput("state", "active or archived")
    learner_id, project = _project(project_id)
    archived = state == "archived"
    found = screens.set_archived(learner_id, project, _screen(screen_id), archived=archived)
    done(f"“{found.base}” is {'archived' if archived else 'active again'}.")
    return to("views.project", project_id=project)


@views.get("/projects/<project_id>/screens/<screen_id>/<number>")
def picture(project_id: str, screen_id: str, number: str) -> flask.Response:
    """Send a version's picture, `latest` or by its number, to its learner alone."""
    found = screens.find_screen(*_project(project_id), _screen(screen_id))
    wanted = str(found.latest) if number == "latest" else number
    for version in screens.versions_of(found):
        if str(version.number) == wanted:
            data = screens.picture_of(version)
            return flask.Response(data, mimetype=version.content_type)
    raise Unknown("version", number)


def _project(project_id: str) -> tuple[str, int]:
    """Return the ids of the learner and the project."""
    return signed_in.learner_id(), validation.entity_id("project", project_id)


def _screen(screen_id: str) -> int:
    return validation.entity_id("screen", screen_id)
