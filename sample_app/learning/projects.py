"""Projects: created, archived, activated, deleted.

The limit of active projects is a rule over several entities, which no single put can check. Under
the lock it holds: no other request counts and adds at the same time.
"""

from __future__ import annotations

from google.cloud import ndb

import userlock
from sample_app import demonstration
from sample_app.errors import ProjectExists, TooManyProjects, Unknown
from sample_app.learning.learners import find_learner
from sample_app.models import Learner, Project

MOST_ACTIVE = 3
#: The most projects on one page.
MOST = 100


def projects_of(learner_id: str) -> list[Project]:
    """Return the learner's projects, active ones first, then the latest. Reading needs no lock."""
    found = Project.query(ancestor=ndb.Key(Learner, learner_id)).fetch(MOST)
    return sorted(found, key=lambda each: (each.active, each.created), reverse=True)


def find_project(learner_id: str, project_id: int) -> Project:
    """Return one of the learner's projects, or raise `Unknown`. Reading needs no lock."""
    project: Project | None = _key(learner_id, project_id).get()
    if project is None:
        raise Unknown("project", str(project_id))
    return project


def create_project(learner_id: str, title: str) -> Project:
    """Add an active project.

    Raises:
        ProjectExists: there is one with this title, for example after a form was sent twice.
        TooManyProjects: `MOST_ACTIVE` are active.
    """
    with userlock.global_lock(learner_id, wait_timeout=5):
        learner = find_learner(learner_id)
        projects = projects_of(learner_id)
        demonstration.think()
        if any(each.title == title for each in projects):
            raise ProjectExists(title)
        _check_room(projects)
        project = Project(parent=learner.key, title=title)
        project.put()
    return project


def archive_project(learner_id: str, project_id: int) -> Project:
    """Archive a project, which then does not count as active."""
    with userlock.global_lock(learner_id, wait_timeout=5):
        project = find_project(learner_id, project_id)
        demonstration.think()
        project.active = False
        project.put()
    return project


def activate_project(learner_id: str, project_id: int) -> Project:
    """Activate a project again; `TooManyProjects` when `MOST_ACTIVE` are active."""
    with userlock.global_lock(learner_id, wait_timeout=5):
        project = find_project(learner_id, project_id)
        demonstration.think()
        if not project.active:
            _check_room(projects_of(learner_id))
            project.active = True
            project.put()
    return project


def delete_project(learner_id: str, project_id: int) -> None:
    """Delete a project. A project that is already gone is no error."""
    with userlock.global_lock(learner_id, wait_timeout=5):
        _key(learner_id, project_id).delete()


def _check_room(projects: list[Project]) -> None:
    if sum(each.active for each in projects) >= MOST_ACTIVE:
        raise TooManyProjects(MOST_ACTIVE)


def _key(learner_id: str, project_id: int) -> ndb.Key:
    return ndb.Key(Learner, learner_id, Project, project_id)
