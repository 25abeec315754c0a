"""The studio of the running app: its quota of projects, its trees, and its storage."""

from __future__ import annotations

from typing import cast

import flask
from google.cloud import ndb

from sample_app.models import Learner, Project, Screen, ScreenVersion
from sample_app.storage import Storage
from userlock.clock import Clock
from userlock.constraints import Quota
from userlock.deletion import Tree
from userlock.outbox import Outbox

#: Active projects by plan.
MOST_PROJECTS = {"free": 3, "plus": 10}
#: After so long nobody completes an upload any more, in seconds.
_SWEEP_AFTER = 3600


def install(app: flask.Flask, outbox: Outbox, storage: Storage) -> None:
    """Register the jobs of the studio."""
    clock = cast(Clock, app.config["CLOCK"])
    quota = Quota(
        "projects",
        outbox,
        limit=most_projects,
        select=active_projects,
        flag="over_quota",
        clock=clock,
    )
    tree = Tree(
        Project,
        outbox,
        children={Screen: {ScreenVersion: "screen"}},
        assets={ScreenVersion: lambda version: storage.delete(version.file)},
        on_delete=quota.stamp,
        clock=clock,
    )

    @outbox.job(name="sweep-file", ordered=False)
    def sweep_file(learner_id: str, file: str) -> None:
        """Remove a file whose upload was not completed."""
        if ScreenVersion.query(ScreenVersion.file == file).get(keys_only=True) is None:
            storage.delete(file)

    app.extensions["studio"] = quota, tree, storage, sweep_file


def most_projects(learner_id: str) -> int:
    """Return how many active projects the learner's plan allows."""
    learner = Learner.get_by_id(learner_id)
    return MOST_PROJECTS["free" if learner is None else learner.plan]


def active_projects(learner_id: str) -> list[Project]:
    """Return the learner's active projects, the oldest first: they are kept."""
    found = Project.query(ancestor=ndb.Key(Learner, learner_id)).fetch()
    return sorted((each for each in found if each.active), key=lambda each: each.created)


def quota() -> Quota:
    """Return the quota of projects."""
    found: Quota = flask.current_app.extensions["studio"][0]
    return found


def storage() -> Storage:
    """Return the storage of files."""
    found: Storage = flask.current_app.extensions["studio"][2]
    return found


def sweep_later(learner_id: str, *files: str) -> None:
    """Let files be removed later that nothing refers to by then. Before they are written."""
    job = flask.current_app.extensions["studio"][3]

    def stage() -> None:
        for file in files:
            job.stage(learner_id, file, delay=_SWEEP_AFTER)

    ndb.transaction(stage)
