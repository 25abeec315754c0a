"""A site on App Engine that counts points, one lock per user around each change.

`app.yaml` keeps the locks in Memorystore, `bundled.yaml` in App Engine's own memcache.
USERLOCK_STORE selects the store. USERLOCK_QUEUE names the queue of `queue.yaml`, which runs the
jobs of the outbox; `cron.yaml` calls its relay.
"""

import logging
import os

import flask
from google.cloud import ndb

import userlock
from userlock.contrib.flask import UserLock, user_lock
from userlock.outbox import Outbox

logging.basicConfig(level=logging.INFO)
store = os.environ["USERLOCK_STORE"]
outbox = Outbox(os.environ["USERLOCK_QUEUE"], client=ndb.Client)
app = flask.Flask(__name__)
app.secret_key = os.environ.get("SECRET_KEY")  # signs the session; without it nobody is signed in
UserLock(
    app,
    client=ndb.Client,  # created in each worker: a gRPC channel does not survive a fork
    service=userlock.LockService.from_url(store),
    batch_prefixes=["/tasks/"],
    outbox=outbox,
)
if store.startswith("appengine:"):
    from google.appengine.api import wrap_wsgi_app

    # After UserLock, as jobs need the memcache too, and run before the app.
    app.wsgi_app = wrap_wsgi_app(app.wsgi_app)


class Wallet(userlock.UserModel):
    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)
    write_id = userlock.WriteIdProperty()


@outbox.job(name="points.congratulate")
def congratulate(user_id, points):
    """Send a mail: run by the queue, after the commit."""
    logging.info("mail to %s: %d points", user_id, points)


def is_signed_in(user_id):
    """Know who asks, before the lock. Your sign-in writes the session."""
    return flask.session.get("user_id") == user_id


@app.post("/users/<user_id>/points")
@user_lock("user_id", allowed=is_signed_in, wait_timeout=5)
@userlock.transactional  # the points and the job, or neither
def add_points(user_id):
    wallet = Wallet.get_by_id(user_id) or Wallet(id=user_id)
    wallet.points += 5
    wallet.put()
    if wallet.points % 50 == 0:
        congratulate.stage(user_id, points=wallet.points)
    return {"points": wallet.points}


@app.get("/tasks/halve")  # App Engine's cron sends GET
def halve():
    """Run the nightly sweep (`cron.yaml`): one user's lock at a time, with short waits."""
    if "X-Appengine-Cron" not in flask.request.headers:
        flask.abort(403)  # App Engine removes this header from external requests
    skipped = 0
    for key in Wallet.query().iter(keys_only=True):
        try:
            with userlock.global_lock(key.id()):
                wallet = key.get()
                if wallet is not None:
                    wallet.points //= 2
                    wallet.put()
        except userlock.LockTimeout:
            skipped += 1  # one stuck user does not stop the sweep
    return {"skipped": skipped}


@app.get("/_ah/warmup")
def warmup():
    return "", 204
