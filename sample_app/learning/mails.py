"""Mails to learners. Each is sent by a job, so none is lost, and none is about nothing.

The post office of this site is in Datastore, so the jobs are transactions (`jobs.py`), and each
mail arrives once. One across the network gets the mail's own id, by which it knows a second one.
"""

from __future__ import annotations

from collections.abc import Sequence

import userlock
from sample_app import badges, catalogue
from sample_app.models import Mail, PostOffice

OFFICE_ID = "*post-office"
MOST_SHOWN = 8


class PostOfficeClosed(Exception):
    """The post office takes no mail at the moment. The outbox tries again."""


def send_receipt(learner_id: str, course: str, price: int) -> None:
    """Send the receipt for a certificate; under the learner's lock, as all jobs."""
    title = catalogue.course(course).title
    _send(learner_id, f"Your certificate “{title}”", f"You have paid {price} points.")


def send_course_receipt(learner_id: str, course: str, cents: int) -> None:
    """Send the receipt for a paid course; under the learner's lock, as all jobs."""
    title = catalogue.paid_course(course).title
    _send(learner_id, f"Your course “{title}”", f"You have paid {cents / 100:.2f}.")


def send_badges(learner_id: str, slugs: Sequence[str]) -> None:
    """Tell a learner of new badges."""
    earned = [badge for badge in badges.BADGES if badge.slug in slugs]
    subject = " and ".join(f"“{badge.title}”" for badge in earned)
    _send(learner_id, f"You have earned {subject}", "; ".join(badge.rule for badge in earned) + ".")


def is_open() -> bool:
    """Return whether the post office takes mails."""
    office = PostOffice.get_by_id(OFFICE_ID)
    return office is None or office.is_open


def set_open(is_open: bool) -> None:
    """Open or close the post office: an outage of a service that others depend on."""
    with userlock.global_lock(OFFICE_ID, wait_timeout=5):
        office = PostOffice.get_by_id(OFFICE_ID) or PostOffice(id=OFFICE_ID)
        office.is_open = is_open
        office.put()


def latest() -> list[Mail]:
    """Return the mails that arrived last, of all learners."""
    return list(Mail.query().order(-Mail.at).fetch(MOST_SHOWN))


def _send(learner_id: str, subject: str, text: str) -> None:
    if not is_open():
        raise PostOfficeClosed("the post office is closed")
    Mail(learner_id=learner_id, subject=subject, text=text).put()
