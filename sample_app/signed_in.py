"""The signed-in user: a name in a signed cookie, chosen from a list; of a program, in its request.

There are no passwords: this is a sample, and everybody may sign in as anybody. A real site puts its
own sign-in here. The rest of the code calls `learner_id`, `coach_id` and `check_learner` only.
"""

from __future__ import annotations

import flask

from sample_app.errors import SignInFirst, SomebodyElse
from sample_app.models import Coach, Learner

_LEARNER = "learner_id"
_COACH = "coach_id"


def sign_in(who: Learner | Coach) -> None:
    """Sign in, and sign out the previous user."""
    sign_out()
    flask.session[_COACH if isinstance(who, Coach) else _LEARNER] = who.id
    flask.session["name"] = who.name


def sign_out() -> None:
    """Sign out. Messages that were not shown yet are kept."""
    for key in (_LEARNER, _COACH, "name"):
        flask.session.pop(key, None)


def learner_id() -> str:
    """Return the id of the signed-in learner, or raise `SignInFirst`."""
    return _id(_LEARNER, "learner")


def coach_id() -> str:
    """Return the id of the signed-in coach, or raise `SignInFirst`."""
    return _id(_COACH, "coach")


def check_learner(learner_id: str) -> None:
    """Raise unless this learner asks: by the cookie, or by the name of `curl --user NAME:`."""
    basic = flask.request.authorization
    asks = flask.session.get(_LEARNER) if basic is None else basic.username
    if asks is None:
        raise SignInFirst("learner")
    if asks != learner_id:
        raise SomebodyElse


def _id(key: str, who: str) -> str:
    found: str | None = flask.session.get(key)
    if found is None:
        raise SignInFirst(who)
    return found
