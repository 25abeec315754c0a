"""The outbox of the running app. `jobs.py` registers its jobs, and actions stage them by name."""

from __future__ import annotations

from typing import Any

import flask

from userlock.outbox import Job, Outbox


def outbox() -> Outbox:
    """Return the app's outbox."""
    found: Outbox = flask.current_app.extensions["outbox"]
    return found


def job(name: str) -> Job[..., Any]:
    """Return the job of that name."""
    return outbox().jobs[name]
