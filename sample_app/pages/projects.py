"""Projects: the list, each one's page, and the confirmation of a deletion."""

from __future__ import annotations

import flask
from werkzeug.wrappers import Response

from sample_app import signed_in, validation
from sample_app.errors import BadInput
from sample_app.learning import projects
from sample_app.pages.blueprint import done, to, views
from sample_app.web import field


@views.get("/projects")
def all_projects() -> str:
    """Show the learner's projects, and a form for a new one."""
    return flask.render_template(
        "projects.html",
        projects=projects.projects_of(signed_in.learner_id()),
        most_active=projects.MOST_ACTIVE,
    )


@views.post("/projects")
def create_project() -> Response:
    """Create a project."""
    title = validation.line("title", field("title"), longest=validation.MAX_TITLE_LENGTH)
    project = projects.create_project(signed_in.learner_id(), title)
    done(f"“{project.title}” has begun.")
    return to("views.all_projects")


@views.get("/projects/<project_id>")
def project(project_id: str) -> str:
    """Show one project."""
    found = projects.find_project(*_path(project_id))
    return flask.render_template("project.html", project=found)


@views.post("/projects/<project_id>")
def change_project(project_id: str) -> Response:
    """Archive or activate a project, depending on `state`."""
    match field("state"):
        case "archived":
            found = projects.archive_project(*_path(project_id))
            done(f"“{found.title}” is archived.")
        case "active":
            found = projects.activate_project(*_path(project_id))
            done(f"“{found.title}” is active again.")
        case _:
            raise BadInput("state", "active or archived")
    return to("views.all_projects")


@views.get("/projects/<project_id>/delete")
def ask_to_delete(project_id: str) -> str:
    """Ask for confirmation before a project is deleted."""
    found = projects.find_project(*_path(project_id))
    return flask.render_template("project_delete.html", project=found)


@views.post("/projects/<project_id>/delete")
def delete_project(project_id: str) -> Response:
    """Delete a project."""
    projects.delete_project(*_path(project_id))
    done("The project is deleted.")
    return to("views.all_projects")


def _path(project_id: str) -> tuple[str, int]:
    """Return the ids of the learner and the project."""
    return signed_in.learner_id(), validation.project_id(project_id)
