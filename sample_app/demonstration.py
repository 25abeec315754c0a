"""A pause and a sudden death, for demonstrations and tests, in one place."""

from __future__ import annotations

import os
import signal
import time

import flask

#: The points where a worker may be killed, with their words.
DEATHS = {
    "ordered": "after the order is stored",
    "asked": "while the provider is asked",
    "charged": "after the charge, before it is stored",
}


def think() -> None:
    """Pause between a get and its put for THINK_MS (normally 0).

    Without protection, two requests for one learner then overlap almost always. A lost update shows
    within seconds instead of once in a busy week.
    """
    if milliseconds := flask.current_app.config["THINK_MS"]:
        time.sleep(milliseconds / 1000)


def perhaps_die(point: str, attempt: int) -> None:
    """Kill this process, as `kill -9` does, if the signed-in user has chosen this point.

    Needs DEATHS, which only the demonstration stack sets. Only first attempts die, so that the
    same request, sent again, is completed.
    """
    if not flask.current_app.config["DEATHS"] or attempt > 1 or not flask.has_request_context():
        return
    if flask.session.get("death") == point:
        os.kill(os.getpid(), signal.SIGKILL)
