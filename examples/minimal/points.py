# points.py
from typing import Any

import flask
from google.cloud import ndb

import userlock
from userlock.contrib.flask import UserLock

app = flask.Flask(__name__)
service = userlock.LockService.from_url("memcache://127.0.0.1:11211?prefix=points")
UserLock(app, client=ndb.Client, service=service)  # a scope per request


class User(userlock.UserModel):
    _lock_id_from_key = userlock.key_id  # the lock id is the user id
    points: Any = ndb.IntegerProperty(default=0)


@app.before_request
def check_user() -> None:
    """Know who asks, before the lock: in place of this, your sign-in."""
    asks, address = flask.request.authorization, flask.request.view_args or {}
    if asks is None or asks.username != address.get("user_id"):
        flask.abort(403)


@app.post("/users/<user_id>/exercise-finished")
def exercise_finished(user_id: str) -> dict[str, int]:
    with userlock.global_lock(user_id, wait_timeout=5):
        user = User.get_or_insert(user_id)
        user.points += 5
        user.put()
    return {"points": user.points}
