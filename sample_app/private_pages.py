"""Headers of all responses: no cache keeps them, no other site frames them, no foreign script runs.

Every page shows the data of somebody, if only a name. So the headers are on every response, errors
included. Style sheets and scripts, which are the same for everybody, may be kept by caches.
"""

from __future__ import annotations

import flask

_HEADERS = {
    # All scripts and styles are files of this site: none is in a page.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def install(app: flask.Flask) -> None:
    """Add the headers to the responses of `app`. To be called before other extensions."""
    app.after_request(_harden)


def _harden(response: flask.Response) -> flask.Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    if flask.request.endpoint != "static" or response.status_code >= 400:
        response.headers["Cache-Control"] = "no-store"
    return response
