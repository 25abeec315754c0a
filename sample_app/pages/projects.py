"""Projects: the list, each one's page, the plan, and the progress of deletions."""

from __future__ import annotations

import flask
from werkzeug.wrappers import Response

from sample_app import signed_in, studio, validation
from sample_app.errors import BadInput, ProjectExists, Unknown
from sample_app.learning import projects, screens
from sample_app.learning.learners import find_learner
from sample_app.pages.blueprint import done, to, views
from sample_app.web import field


@views.get("/projects")
def all_projects() -> str:
    """Show the learner's projects, deletions under way, the plan, and a form for a new one."""
    learner = find_learner(signed_in.learner_id())
    return flask.render_template(
        "projects.html",
        projects=projects.projects_of(learner.id),
        deletions=projects.deletions_under_way(learner.id),
        plan=learner.plan,
        limits=studio.MOST_PROJECTS,
        typed=flask.request.args.get("title", ""),
    )


@views.post("/projects")
def create_project() -> Response:
    """Create a project. If its title is taken, the form keeps what was typed."""
    try:
        project = projects.create_project(signed_in.learner_id(), _title())
    except ProjectExists as error:
        flask.flash(str(error), "problem")
        return to("views.all_projects", title=_title())
    done(f"“{project.title}” has begun.")
    return to("views.all_projects")


@views.post("/plan")
def set_plan() -> Response:
    """Change the learner's plan to `plan`."""
    plan = field("plan")
    if plan not in studio.MOST_PROJECTS:
        raise BadInput("plan", f"one of {', '.join(studio.MOST_PROJECTS)}")
    projects.set_plan(signed_in.learner_id(), str(plan))
    done(f"You have the plan “{plan}” now.")
    return to("views.all_projects")


@views.get("/projects/<project_id>")
def project(project_id: str) -> str:
    """Show one project with its screens."""
    found = projects.find_project(*_path(project_id))
    return flask.render_template(
        "project.html", project=found, screens=screens.screens_of(found.key)
    )


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


@views.post("/projects/<project_id>/title")
def rename_project(project_id: str) -> Response:
    """Rename a project."""
    found = projects.rename_project(*_path(project_id), _title())
    done(f"It is called “{found.title}” now.")
    return to("views.project", project_id=project_id)


@views.post("/projects/<project_id>/duplicate")
def duplicate_project(project_id: str) -> Response:
    """Copy a project with its screens."""
    found = projects.duplicate_project(*_path(project_id))
    done(f"The copy is called “{found.title}”.")
    return to("views.project", project_id=found.id)


@views.get("/projects/<project_id>/title")
@views.get("/projects/<project_id>/duplicate")
def back_to_project(project_id: str) -> Response:
    """Lead back to the page of a form that was refused."""
    return to("views.project", project_id=project_id)


@views.get("/plan")
def back_to_projects() -> Response:
    """Lead back to the page of a form that was refused."""
    return to("views.all_projects")


@views.get("/projects/<project_id>/delete")
def ask_to_delete(project_id: str) -> str:
    """Ask for confirmation before a project is deleted."""
    found = projects.find_project(*_path(project_id))
    count = len(screens.screens_of(found.key))
    return flask.render_template("project_delete.html", project=found, screens=count)


@views.post("/projects/<project_id>/delete")
def delete_project(project_id: str) -> Response:
    """Delete a project, and show the progress with its screens."""
    path = _path(project_id)
    try:
        title = projects.find_project(*path).title
    except Unknown:  # sent again
        title = ""
    deletion = projects.delete_project(*path)
    done(f"“{title}” is deleted." if title else "The project is deleted.")
    return to("views.deletion", deletion_id=deletion.id)


@views.get("/deletions/<deletion_id>")
def deletion(deletion_id: str) -> str:
    """Show how far a deletion is."""
    found = projects.deletion(signed_in.learner_id(), validation.deletion_id(deletion_id))
    return flask.render_template("deletion.html", deletion=found)


def _title() -> str:
    return validation.line("title", field("title"), longest=projects.MAX_TITLE_LENGTH)


def _path(project_id: str) -> tuple[str, int]:
    """Return the ids of the learner and the project."""
    return signed_in.learner_id(), validation.entity_id("project", project_id)
