"""A paid request with userlock, under Flask and gunicorn."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Any

import flask
from google.cloud import ndb

import userlock
from userlock.contrib.flask import Flows, UserLock

shop: Any = importlib.import_module("shop")

app = flask.Flask(__name__)
service = userlock.LockService.from_url(
    os.environ["SHOP_STORE"], policy=userlock.LockPolicy(heartbeat_lock_timeout=3.0)
)
# Its workers have threads for all clients of the test.
UserLock(app, client=ndb.Client, service=service, max_waiting=None)
flows = Flows(keep_hours=shop.KEEP_SECONDS / 3600)


class PeerOrder(userlock.UserModel):
    _lock_id = "user_id"
    user_id = ndb.StringProperty(required=True)
    reference = ndb.StringProperty()
    charge = ndb.StringProperty()


@app.post("/orders")
@flows.idempotent(user=lambda: "ann")
def create_order(flow: Any) -> None:
    reference, cents = flow.params["reference"], flow.params["cents"]
    charge = flow.external(
        "charge",
        lambda key: shop.pay(reference, cents, key),
        final={shop.Declined: 402},
        transient=(shop.Unavailable,),
    )
    with flow.last() as end:
        order = PeerOrder(user_id=flow.user_id, reference=reference, charge=charge).put()
        end.respond({"order": order.id(), "charge": charge}, 201)


@app.get("/orders")
def orders() -> Any:
    found = PeerOrder.query(PeerOrder.reference == flask.request.args.get("reference", ""))
    return flask.jsonify([each.charge for each in found])


@app.post("/reap")
def reap() -> str:
    return str(flows.reap())


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Report that the answer is stored, before it is sent."""
    response: Iterable[bytes] = app(environ, start_response)
    if environ["REQUEST_METHOD"] == "POST":
        shop.reach("answered")
    return response
