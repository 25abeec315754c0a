"""The site with a leak, which the load test must find: each response is kept."""

from __future__ import annotations

import flask

from sample_app.wsgi import app

_kept: list[bytes] = []


@app.after_request
def keep(response: flask.Response) -> flask.Response:
    """Keep the response, like a careless cache or a global list."""
    _kept.append(b"x" * 16 * 1024)
    return response
