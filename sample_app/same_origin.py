"""Protection from cross-site request forgery: only this site's own pages may send forms.

The check covers all requests except GET, on every route, so no form can forget a token.
`SameSite=Lax` on the cookie is the second line.
"""

from __future__ import annotations

import flask

from sample_app.errors import ElsewhereForm
from userlock.contrib.inspector.pages import is_of_this_site

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def install(app: flask.Flask) -> None:
    """Check all requests to `app`."""
    app.before_request(_check)


def _check() -> None:
    request = flask.request
    if request.method not in _SAFE_METHODS and not is_of_this_site(
        request.headers, request.scheme, request.host
    ):
        raise ElsewhereForm
