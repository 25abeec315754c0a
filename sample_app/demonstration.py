"""A pause for demonstrations and tests, in one place."""

from __future__ import annotations

import time

import flask


def think() -> None:
    """Pause between a get and its put for THINK_MS (normally 0).

    Without protection, two requests for one learner then overlap almost always. A lost update shows
    within seconds instead of once in a busy week.
    """
    if milliseconds := flask.current_app.config["THINK_MS"]:
        time.sleep(milliseconds / 1000)
