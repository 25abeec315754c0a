"""The site with a leak, for the load test to find: each answer is kept, and never looked at."""

from __future__ import annotations

import flask

from sample_app.wsgi import app

_kept: list[bytes] = []


@app.after_request
def keep(response: flask.Response) -> flask.Response:
    """What a careless cache or a global list does."""
    _kept.append(b"x" * 16 * 1024)
    return response
