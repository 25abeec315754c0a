"""Screens of a project: uploaded, in versions, archived, activated.

The file is written first, under a name of its own; a job that removes it if nothing refers to it is
staged before that. Then one transaction stores the version that refers to it. So a crash leaves no
version without its file, and no file for ever without its version.
"""

from __future__ import annotations

from google.cloud import ndb

import userlock
from sample_app import demonstration, studio
from sample_app.errors import ScreenExists, Unknown
from sample_app.learning import projects
from sample_app.models import Screen, ScreenVersion
from sample_app.pictures import Picture
from sample_app.storage import new_name
from userlock.constraints import image_name

#: The most screens on one page, and versions.
MOST = 100


def screens_of(project: ndb.Key) -> list[Screen]:
    """Return a project's screens, by name. Reading needs no lock."""
    found = Screen.query(ancestor=project).fetch()
    return sorted(found, key=lambda each: (each.archived, each.base))[:MOST]


def find_screen(learner_id: str, project_id: int, screen_id: int) -> Screen:
    """Return a screen, or raise `Unknown`. Reading needs no lock."""
    key = ndb.Key(Screen, screen_id, parent=projects.project_key(learner_id, project_id))
    found: Screen | None = key.get()
    if found is None:
        raise Unknown("screen", str(screen_id))
    return found


def versions_of(screen: Screen) -> list[ScreenVersion]:
    """Return a screen's versions, the latest first."""
    found = ScreenVersion.query(ScreenVersion.screen == screen.key).fetch()
    return sorted(found, key=lambda each: each.number, reverse=True)[:MOST]


def picture_of(version: ScreenVersion) -> bytes:
    """Return a version's file, or raise `Unknown`."""
    data = studio.storage().read(version.file)
    if data is None:
        raise Unknown("picture", version.file_name)
    return data


def upload(learner_id: str, project_id: int, file_name: str, picture: Picture) -> Screen:
    """Store a picture: as a new screen, or as the next version of the one of its name.

    Raises:
        OverQuota: the project is archived, or over quota.
    """
    file = new_name()
    studio.sweep_later(learner_id, file)
    studio.storage().write(file, picture.data, picture.content_type)

    def store() -> Screen:
        project = projects.find_project(learner_id, project_id)
        projects.check_writable(project)
        screen = _active(project.key, file_name) or Screen(parent=project.key)
        screen.file_name = file_name
        screen.latest += 1
        screen.put()
        ScreenVersion(
            learner_id=learner_id,
            screen=screen.key,
            number=screen.latest,
            file=file,
            file_name=file_name,
            content_type=picture.content_type,
            width=picture.width,
            height=picture.height,
            size=len(picture.data),
        ).put()
        return screen

    with userlock.global_lock(learner_id, wait_timeout=5):
        demonstration.think()
        stored: Screen = ndb.transaction(store)
    return stored


def set_archived(learner_id: str, project_id: int, screen_id: int, *, archived: bool) -> Screen:
    """Archive a screen, or activate it again.

    Raises:
        OverQuota: the project is archived, or over quota.
        ScreenExists: an active one has its name.
    """
    with userlock.global_lock(learner_id, wait_timeout=5):
        projects.check_writable(projects.find_project(learner_id, project_id))
        screen = find_screen(learner_id, project_id, screen_id)
        screen.archived = archived
        try:
            screen.put()
        except userlock.NotUnique as error:
            raise ScreenExists(screen.base) from error
    return screen


def _active(project: ndb.Key, file_name: str) -> Screen | None:
    """Return the screen of a name that counts, whatever its extension and density."""
    found: Screen | None = Screen.query(
        Screen.base == image_name(file_name),
        Screen.archived == False,  # noqa: E712
        ancestor=project,
    ).get()
    return found
