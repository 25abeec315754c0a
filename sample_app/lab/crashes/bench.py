"""The endpoint: an order is stored, and another service hears of it.

    told      stored, and then the service is called
    outbox    stored with a job, which calls the service
    charged   the card is charged, and then the order is stored
    once      the same as an idempotent request

A request with the header `Lab-Die` kills its worker between the two, as `kill -9` does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import flask
from google.cloud import ndb

import userlock
from sample_app import validation
from sample_app.flows import WAIT_SECONDS, new_key, once
from sample_app.lab.crashes.crew import DIE
from sample_app.outbox import job
from sample_app.payment_provider import client
from userlock.idempotency import Flow
from userlock.outbox import Outbox, Retry

bench = flask.Blueprint("lab_crash", __name__, url_prefix="/lab/crash")

_JOB = "lab-tell"
_CENTS = 2900


class LabOrder(userlock.UserModel):
    """The order of a customer, who orders once: the key's id is the customer's."""

    _lock_id_from_key = userlock.key_id


def install(app: flask.Flask, outbox: Outbox) -> None:
    """Add the endpoint and its job."""

    @outbox.job(name=_JOB, retry=Retry(attempts=8, first_seconds=1))
    def tell(customer: str, key: str) -> None:
        with app.app_context():
            _call(customer, key)

    app.register_blueprint(bench)


def _told(customer: str) -> None:
    with userlock.global_lock(customer, wait_timeout=WAIT_SECONDS):
        if LabOrder.get_by_id(customer) is None:
            LabOrder(id=customer).put()
            _perhaps_die()
            _call(customer, new_key())


def _with_outbox(customer: str) -> None:
    @userlock.transactional
    def place() -> None:
        if LabOrder.get_by_id(customer) is None:
            # Before the job's own hook: the engine never hears of the job, and the relay finds it.
            ndb.get_context().call_on_commit(_perhaps_die)
            LabOrder(id=customer).put()
            job(_JOB).stage(customer, new_key())

    with userlock.global_lock(customer, wait_timeout=WAIT_SECONDS):
        place()


def _charged(customer: str) -> None:
    with userlock.global_lock(customer, wait_timeout=WAIT_SECONDS):
        if LabOrder.get_by_id(customer) is None:
            _call(customer, new_key())
            _perhaps_die()
            LabOrder(id=customer).put()


def _customer() -> str:
    return str(flask.request.view_args["customer"])  # type: ignore[index]  # the route has it


@once(_JOB, user=_customer, wait_timeout=WAIT_SECONDS)
def _charged_once(flow: Flow) -> None:
    def charge(key: str) -> str:
        charged = _call(flow.user_id, key)
        _perhaps_die()
        return charged

    flow.external("charge", charge)
    with flow.last() as end:
        LabOrder(id=flow.user_id).put()
        end.respond({}, 201)


_WAYS: dict[str, Callable[[str], None]] = {
    "told": _told,
    "outbox": _with_outbox,
    "charged": _charged,
}


@bench.post("/once/<customer>")
def order_once(customer: str) -> flask.Response:
    """Order and pay, once for each Idempotency-Key."""
    validation.learner_id(customer)
    return _charged_once()


@bench.post("/<way>/<customer>")
def order(way: str, customer: str) -> tuple[dict[str, object], int]:
    """Place the customer's order, unless it is there."""
    place = _WAYS.get(way)
    if place is None:
        flask.abort(404)
    place(validation.learner_id(customer))
    return {}, 201


@bench.get("/<customer>")
def stored(customer: str) -> dict[str, bool]:
    """Return whether the order is stored."""
    found = LabOrder.get_by_id(validation.learner_id(customer), use_cache=False)
    return {"stored": found is not None}


def _call(customer: str, key: str) -> str:
    url = flask.current_app.config["PAYMENT_PROVIDER"]
    return client.charge(url, key, _CENTS, customer)


def _perhaps_die() -> None:
    if flask.has_request_context() and DIE in flask.request.headers:
        os.kill(os.getpid(), signal.SIGKILL)
