"""Studio projects: created, renamed, archived, activated, duplicated, deleted.

Each function takes the learner's lock, and changes in one transaction what belongs together. The
data layer keeps titles unique (`Project._unique`), so that a form sent twice makes one project.
The limit of the plan refuses nothing: a job flags the projects above it.
"""

from __future__ import annotations

from typing import NamedTuple

from google.cloud import ndb

import userlock
from sample_app import demonstration, studio
from sample_app.errors import OverQuota, ProjectExists, Unknown
from sample_app.learning.learners import find_learner
from sample_app.models import Learner, Project, Screen, ScreenVersion
from sample_app.storage import new_name
from userlock.constraints import put_as_copy
from userlock.deletion import Deletion, delete_tree, deletions_of, find_deletion

#: The most projects on one page.
MOST = 100
MAX_TITLE_LENGTH = 60


def projects_of(learner_id: str) -> list[Project]:
    """Return the learner's projects, active ones first, then the latest. Reading needs no lock."""
    found = Project.query(ancestor=ndb.Key(Learner, learner_id)).fetch()
    return sorted(found, key=lambda each: (each.active, each.created), reverse=True)[:MOST]


def find_project(learner_id: str, project_id: int) -> Project:
    """Return one of the learner's projects, or raise `Unknown`. Reading needs no lock."""
    project: Project | None = project_key(learner_id, project_id).get()
    if project is None:
        raise Unknown("project", str(project_id))
    return project


def create_project(learner_id: str, title: str) -> Project:
    """Add an active project. It starts under quota.

    Raises:
        ProjectExists: an active one has this title, for example after a form was sent twice.
    """
    with userlock.global_lock(learner_id, wait_timeout=5):
        learner = find_learner(learner_id)
        demonstration.think()
        project = Project(parent=learner.key, title=title)
        _put(project)
    return project


def rename_project(learner_id: str, project_id: int, title: str) -> Project:
    """Give a project another title; `ProjectExists` if an active one has it."""
    with userlock.global_lock(learner_id, wait_timeout=5):
        project = find_project(learner_id, project_id)
        demonstration.think()
        project.title = title
        _put(project)
    return project


def archive_project(learner_id: str, project_id: int) -> Project:
    """Archive a project. Its title is free then."""
    with userlock.global_lock(learner_id, wait_timeout=5):
        project = find_project(learner_id, project_id)
        demonstration.think()
        project.active = False
        _put(project)
    return project


def activate_project(learner_id: str, project_id: int) -> Project:
    """Activate a project again: as "… (Copy 1)" if its title is taken."""

    def activate() -> Project:
        project = find_project(learner_id, project_id)
        demonstration.think()
        if not project.active:
            project.active = True
            project.over_quota = False  # until it is counted
            put_as_copy(project, "title", max_length=MAX_TITLE_LENGTH)
            studio.quota().stamp(learner_id)
        return project

    with userlock.global_lock(learner_id, wait_timeout=5):
        project: Project = ndb.transaction(activate)
    return project


def duplicate_project(learner_id: str, project_id: int) -> Project:
    """Copy a project with its screens, in their latest versions, as "… (Copy 1)".

    The files are copied before the lock is taken, as that may take long. The copy is of the screens
    that were there then.
    """
    copies = _copied_files(learner_id, find_project(learner_id, project_id).key)
    with userlock.global_lock(learner_id, wait_timeout=5):
        copy: Project = ndb.transaction(lambda: _put_copy(learner_id, project_id, copies))
    return copy


def delete_project(learner_id: str, project_id: int) -> Deletion:
    """Delete a project now, and by a job all its screens, versions and files.

    To delete one that is gone already is no error.
    """
    with userlock.global_lock(learner_id, wait_timeout=5):
        key = project_key(learner_id, project_id)
        project: Project | None = key.get()
        return delete_tree(key, note="" if project is None else project.title)


def deletion(learner_id: str, deletion_id: str) -> Deletion:
    """Return a deletion, or raise `Unknown`. Reading needs no lock."""
    found = find_deletion(learner_id, deletion_id)
    if found is None:
        raise Unknown("deletion", deletion_id)
    return found


def deletions_under_way(learner_id: str) -> list[Deletion]:
    """Return the learner's deletions that have not ended."""
    return [each for each in deletions_of(learner_id) if each.ended_at is None]


def set_plan(learner_id: str, plan: str) -> None:
    """Change the learner's plan. The projects above its limit are flagged soon after."""
    with userlock.global_lock(learner_id, wait_timeout=5):
        learner = find_learner(learner_id)
        learner.plan = plan

        def change() -> None:
            learner.put()
            studio.quota().stamp(learner_id)

        ndb.transaction(change)


def check_writable(project: Project) -> None:
    """Refuse a change of what is in a project that is archived or over quota."""
    if not project.active or project.over_quota:
        raise OverQuota(project.title, archived=not project.active)


def project_key(learner_id: str, project_id: int) -> ndb.Key:
    """Return the key of a learner's project."""
    return ndb.Key(Learner, learner_id, Project, project_id)


def _put(project: Project) -> None:
    """Put a project and stamp the quota, in one transaction."""

    def put() -> None:
        project.put()
        studio.quota().stamp(project.key.root().id())

    try:
        ndb.transaction(put)
    except userlock.NotUnique as error:
        existing = error.holder.get()
        raise ProjectExists(project.title if existing is None else existing.title) from error


# --- copies ---------------------------------------------------------------------------------------


class _Copy(NamedTuple):
    """A screen that is to be copied, its latest version, and the name of the new file."""

    screen: Screen
    version: ScreenVersion
    file: str


def _copied_files(learner_id: str, project: ndb.Key) -> list[_Copy]:
    """Copy the files of a project's screens. Nothing refers to the new ones yet."""
    copies = []
    for screen in Screen.query(Screen.archived == False, ancestor=project):  # noqa: E712
        versions = ScreenVersion.query(ScreenVersion.screen == screen.key)
        latest = [each for each in versions if each.number == screen.latest]
        copies += [_Copy(screen, each, new_name()) for each in latest]
    studio.sweep_later(learner_id, *(each.file for each in copies))
    storage = studio.storage()
    for each in copies:
        data = storage.read(each.version.file)
        if data is not None:
            storage.write(each.file, data, each.version.content_type)
    return copies


def _put_copy(learner_id: str, project_id: int, copies: list[_Copy]) -> Project:
    original = find_project(learner_id, project_id)
    project = Project(parent=original.key.parent(), title=original.title)
    put_as_copy(project, "title", max_length=MAX_TITLE_LENGTH)
    for each in copies:
        screen = Screen(parent=project.key, file_name=each.screen.file_name, latest=1)
        screen.put()
        values = each.version.to_dict(exclude=["screen", "number", "file", "at"])
        ScreenVersion(screen=screen.key, number=1, file=each.file, **values).put()
    studio.quota().stamp(learner_id)
    return project
