"""Paid courses: an order, a charge by the payment provider, and the enrolment.

sent                                   stored
  order, in a transaction ───────────▶ the order, open
  charge, by a key of this request ──▶ before: that it is asked; after: the charge
  enrolment, receipt, answer ────────▶ all of it, or nothing
sent again: what is stored is not done again. The provider knows its key, so it charges once.
"""

from __future__ import annotations

from typing import Any

import flask
from google.cloud import ndb

from sample_app import catalogue, demonstration
from sample_app.errors import AlreadyEnrolled, OrderOpen
from sample_app.learning.learners import find_learner
from sample_app.models import CourseOrder, Learner
from sample_app.outbox import job
from sample_app.payment_provider import client
from userlock.idempotency import Flow

#: How often a provider that gives no answer is asked in one attempt.
ATTEMPTS = 2


def orders_of(learner_id: str) -> list[CourseOrder]:
    """Return the learner's orders, the latest first. Reading needs no lock."""
    found = CourseOrder.query(ancestor=ndb.Key(Learner, learner_id)).fetch()
    return sorted(found, key=lambda order: order.at, reverse=True)


def buy_course(flow: Flow, course: catalogue.PaidCourse) -> None:
    """Buy a course: the order, the charge, and at last the enrolment, the receipt and the answer.

    A declined card changes the order, so it is a reply of the provider here, not an error that
    ends the request.

    Raises:
        AlreadyEnrolled: the learner has paid for it. Nothing was written.
        OrderOpen: another request buys it, and is not complete. Nothing was written.
    """
    order = flow.phase("order", lambda: _begin_order(flow, course))
    demonstration.perhaps_die("ordered", flow.attempt)
    reply = flow.external("charge", lambda key: _charge(flow, key, order), attempts=ATTEMPTS)
    with flow.last() as end:
        learner = find_learner(flow.user_id)
        bought = CourseOrder.get_by_id(order["id"], parent=learner.key)
        if "declined" in reply:
            bought.state = "declined"
            bought.put()
            end.respond(_declined(reply["declined"]), 402)
            return
        bought.state, bought.charge = "paid", reply["charge"]
        bought.put()
        learner.courses.append(bought.course)
        learner.put()
        job("course-receipt").stage(flow.user_id, bought.course, cents=bought.cents)
        answer = {"order": order["id"], "course": bought.course, "charge": bought.charge}
        end.respond({**answer, "attempt": flow.attempt}, 201)


def _begin_order(flow: Flow, course: catalogue.PaidCourse) -> dict[str, Any]:
    learner = find_learner(flow.user_id)
    if course.slug in learner.courses:
        raise AlreadyEnrolled(course.title)
    orders = orders_of(flow.user_id)
    demonstration.think()
    if any(each.course == course.slug and each.state == "open" for each in orders):
        raise OrderOpen(course.title)
    order = CourseOrder(
        parent=learner.key, course=course.slug, cents=course.cents, request=flow.key
    )
    return {"id": order.put().id(), "cents": order.cents}


def _charge(flow: Flow, key: str, order: dict[str, Any]) -> dict[str, Any]:
    """Charge the price that was ordered; a later one would be another request to the provider."""
    url = flask.current_app.config["PAYMENT_PROVIDER"]
    try:
        charge = client.charge(
            url,
            key,
            order["cents"],
            f"{flow.user_id}/{order['id']}",
            sent=lambda: demonstration.perhaps_die("asked", flow.attempt),
        )
    except client.CardDeclined as refusal:
        return {"declined": str(refusal)}
    demonstration.perhaps_die("charged", flow.attempt)
    return {"charge": charge}


def _declined(why: str) -> dict[str, Any]:
    detail = f"Not paid: {why}."
    return {"title": "Payment Required", "status": 402, "detail": detail, "error": "card_declined"}
