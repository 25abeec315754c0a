"""Forms are taken from this site's own pages only (no cross-site request forgery).

A page elsewhere can make a browser post a form to here, with the cookies of
whoever is signed in. Browsers say where a request comes from: `Sec-Fetch-Site`
on every request to a secure site or to this machine, `Origin` on every POST.
Pages cannot forge either. A request with neither is no browser's, and so has
nobody's cookies to misuse.

Holds for all that is not a GET, whatever route it has, so no form can forget a
token. `SameSite=Lax` on the cookie is the second line.
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
        # "none": typed, or from a bookmark. "same-site" is another host of the same domain.
        return site in {"same-origin", "none"}
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.host
