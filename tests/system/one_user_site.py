"""A site that gunicorn runs: one user's requests each take that user's lock.

MAX_WAITING is the integration's `max_waiting`: a number, "none", or empty for the default.
"""

from __future__ import annotations

import os
from typing import Any

import flask

import userlock
from userlock.contrib.flask import UserLock, user_lock

app = flask.Flask(__name__)
_said = os.environ["MAX_WAITING"]
_options: dict[str, Any] = {"max_waiting": None if _said == "none" else int(_said)} if _said else {}
UserLock(app, service=userlock.LockService.from_url(os.environ["USERLOCK_STORE"]), **_options)


@app.post("/users/<user_id>")
@user_lock("user_id")
def change(user_id: str) -> str:
    return "changed"


@app.post("/users/<user_id>/gate")
@user_lock("user_id")
def wait_at_gate(user_id: str) -> str:
    """Go on under the user's lock once the gate is open."""
    with userlock.global_lock("gate", wait_timeout=20):
        return "through"


@app.get("/healthz")
def healthz() -> str:
    return "fine"
