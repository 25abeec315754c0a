"""A service on Cloud Run that counts points, one lock per user around each change.

USERLOCK_STORE selects the store of the locks. During its outages they are taken in Datastore.
USERLOCK_QUEUE names the queue, made by `setup.sh`, that runs the jobs of the outbox.
"""

import logging
import os

import flask
from google.cloud import ndb

import userlock
from userlock.contrib.flask import UserLock, user_lock
from userlock.outbox import Outbox

logging.basicConfig(level=logging.INFO)
outbox = Outbox(os.environ["USERLOCK_QUEUE"], client=ndb.Client)
if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
    from telemetry import report

    report(outbox)
app = flask.Flask(__name__)
app.secret_key = os.environ.get("SECRET_KEY")  # signs the session; without it nobody is signed in
UserLock(
    app,
    client=ndb.Client,  # created in each worker: a gRPC channel does not survive a fork
    service=userlock.LockService.from_url(
        os.environ["USERLOCK_STORE"],
        fallback=os.environ.get("USERLOCK_FALLBACK") or None,
    ),
    batch_prefixes=["/tasks/"],
    outbox=outbox,
)


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


@app.get("/healthz")
def healthz():
    return {"ok": True}
