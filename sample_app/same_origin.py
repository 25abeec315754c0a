"""Protection from cross-site request forgery: only this site's own pages may send forms.

A foreign page can make a browser post a form to this site, with the cookies of the signed-in user.
Browsers report the origin of a request: `Sec-Fetch-Site` on every request to a secure site or to
this machine, `Origin` on every POST. Pages cannot forge either. A request with neither is not from
a browser, and so carries no cookies to misuse.

The check covers all requests except GET, on every route, so no form can forget a token.
`SameSite=Lax` on the cookie is the second line.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import flask

from sample_app.errors import ElsewhereForm

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def install(app: flask.Flask) -> None:
    """Check all requests to `app`."""
    app.before_request(_check)


def _check() -> None:
    request = flask.request
    if request.method not in _SAFE_METHODS and not _from_here(request):
        raise ElsewhereForm


def _from_here(request: flask.Request) -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        # "none": typed or bookmarked. "same-site" is another host of the same domain.
        return site in {"same-origin", "none"}
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.host
