"""Serve the inspector: who may see it, its addresses and headers, and its navigation."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import flask
from werkzeug.exceptions import HTTPException, NotFound

import userlock.ids as ids
from userlock.arguments import check_kind
from userlock.contrib.inspector.jobs import JobPages
from userlock.contrib.inspector.locks import TABLES, LockPages, Tally
from userlock.contrib.inspector.requests import RequestPages
from userlock.contrib.inspector.shared import Pages
from userlock.events import LISTENERS
from userlock.idempotency import Flows
from userlock.lock.configuration import default_service
from userlock.lock.lease import process_label
from userlock.lock.service import LockService
from userlock.outbox.outbox import Outbox

log = logging.getLogger(__name__)

_NAME = "userlock_inspector"
#: A link that runs no script.
_ADDRESS = re.compile(r"/|https?://")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
#: The ports that browsers leave out of an origin.
_PORTS = {"http": ":80", "https": ":443"}


def is_of_this_site(headers: Any, scheme: str, host: str) -> bool:
    """Return whether no other site sent a request to a scheme and a host, as the app sees them.

    A foreign page can make a browser send a form, with the user's cookies. It cannot forge the
    headers of the origin: `Sec-Fetch-Site` on every request to a secure site or to the same
    machine, `Origin` on every POST. A request without these is not from a browser: it carries no
    cookies to misuse. A header in another form than that of browsers refuses the request. Behind a
    proxy that ends TLS, the app must take the scheme from the proxy's header; otherwise only
    browsers that send Sec-Fetch-Site are accepted.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        # "none": typed or bookmarked. "same-site" is another host of the same domain.
        return site in {"same-origin", "none"}
    # Browsers write it in lower case, without the scheme's own port.
    own = f"{scheme}://{host.lower()}".removesuffix(_PORTS.get(scheme, ""))
    origin, referer = headers.get("Origin"), headers.get("Referer")
    if origin is None and referer is not None:
        origin = own if f"{referer}/".startswith(f"{own}/") else ""
    return origin is None or bool(host and origin == own)


class Inspector:
    """Pages for operators of a Flask app, under `/userlock`; for `UserLock(app, inspector=…)`.

    They show holders and waiters, contention by lock and by endpoint, and violations with both call
    sites, each also as JSON (`/userlock/locks.json`). An operator can break a lock, after a
    question; that is an event (`Broken`) with the operator's name. Locks, jobs and requests are
    those of all processes. All other facts are of the process that answers.

    `userlock.configure(show_ids=…)` hides lock ids, and shows requests by their routes. A lock can
    then be broken by its id, which has to be typed.

    Args:
        authorise: called with each request for these pages. The answer is 403 unless it returns the
            operator's name (for the log), or True; also if it fails.
        url_prefix: the address of the pages.
        outbox: an outbox, for the pages of its jobs; by default the first of `UserLock`, if any.
        flows: the app's flows, for the pages of requests with an idempotency key, if any.
        back_to: the address of a page, for a link back to the app: a path, or a URL of http or
            https.
    """

    def __init__(
        self,
        authorise: Callable[[flask.Request], bool | str | None],
        *,
        url_prefix: str = "/userlock",
        outbox: Outbox | None = None,
        flows: Flows | None = None,
        back_to: str | None = None,
    ) -> None:
        if not callable(authorise):
            raise TypeError(
                "the inspector needs a function that decides who may see it: "
                "inspector=lambda request: …"
            )
        check_kind("url_prefix", url_prefix, str, "a str")
        check_kind("outbox", outbox, Outbox | None, "an Outbox")
        check_kind("flows", flows, Flows | None, "the app's Flows")
        check_kind("back_to", back_to, str | None, "a str")
        if back_to is not None and not _ADDRESS.match(back_to):
            raise ValueError(f"back_to must be a path or a URL of http(s), not {back_to!r:.80}")
        self._authorise, self._back_to = authorise, back_to
        self._outbox, self._flows = outbox, flows
        self._url_prefix = url_prefix

    def init_app(
        self, app: flask.Flask, service: LockService | None, outbox: Outbox | None = None
    ) -> None:
        """Attach to an app, and start to count. Without a service: the configured one."""
        outbox = outbox if self._outbox is None else self._outbox
        tally = Tally()
        LISTENERS.add(tally.listen)
        if service is not None and service.listeners is not LISTENERS:
            service.listeners.add(tally.listen)

        def find() -> LockService:
            return service or default_service()

        nouns: list[Pages] = [LockPages(find, tally, app)]
        if outbox is not None:
            nouns.append(JobPages(find, outbox))
        if self._flows is not None:
            nouns.append(RequestPages(find, self._flows))
        shared = [each.name for each in nouns]
        own = [name for name in TABLES if name != "locks"]
        pages = flask.Blueprint(
            _NAME, __name__, static_folder="static", template_folder="templates"
        )
        pages.before_request(self._check)
        pages.context_processor(
            lambda: {
                "names": {"All processes": shared, f"This process only: {process_label()}": own},
                "back_to": self._back_to,
                "plain": ids.are_plain(),
            }
        )
        for each in nouns:
            each.add_to(pages)
        app.register_blueprint(pages, url_prefix=self._url_prefix)
        app.before_request(self._hide)
        app.after_request(self._harden)

    def _check(self) -> None:
        operator: object = None
        try:
            operator = self._authorise(flask.request)
        except HTTPException:  # an answer of its own
            raise
        except Exception:
            log.exception("the inspector refused a request: its authorise function failed")
        if operator is True:
            operator = process_label()
        if not (operator and isinstance(operator, str)):  # nor a coroutine
            flask.abort(403)
        flask.g.userlock_operator = operator
        request = flask.request
        own = is_of_this_site(request.headers, request.scheme, request.host)
        if request.method == "POST" and not own:
            flask.abort(403, "This was sent from another site.")

    # Flask authorises only requests that match a route. It redirects `//userlock/locks` itself, or
    # answers 405. Both would tell a stranger which routes there are.

    def _hide(self) -> None:
        """Answer 404 to each request that matches no route."""
        if flask.request.routing_exception is not None and self._covers(flask.request.path):
            flask.request.routing_exception = NotFound()

    def _harden(self, response: flask.Response) -> flask.Response:
        """Keep the response from caches, frames and scripts."""
        if flask.request.blueprint == _NAME or self._covers(flask.request.path):
            response.headers.update(_HEADERS)
        return response

    def _covers(self, path: str) -> bool:
        prefix, path = self._url_prefix.rstrip("/"), re.sub("/+", "/", path)
        return bool(prefix) and f"{path}/".startswith(f"{prefix}/")
