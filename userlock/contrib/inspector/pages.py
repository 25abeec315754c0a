"""The inspector's pages: an HTML table for each view, its JSON twin, and breaking a lock."""

from __future__ import annotations

import datetime
import hashlib
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import flask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

from userlock.admin import snapshot
from userlock.clock import SYSTEM_CLOCK
from userlock.contrib.inspector.tally import Tally
from userlock.contrib.inspector.views import Kind, Mask, View, Views
from userlock.errors import LockServiceUnavailable
from userlock.events import LISTENERS
from userlock.lock.lease import check_lock_id, process_label
from userlock.lock.scope import default_service
from userlock.lock.service import LockService

#: Decides who may see the pages. What it gives is the operator's name, for the log, or True.
Authorise = Callable[[flask.Request], bool | str | None]

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


class Inspector:
    """Pages for operators of a Flask app, under `/userlock`; for `UserLock(app, inspector=…)`.

    Live holders and waiters, contention by lock and by endpoint, violations
    with both places in the code, outages, heartbeats; each also as JSON
    (`/userlock/locks.json`). A lock can be broken, after a question; that is an
    event (`Broken`) with the operator's name. What an app runs in several
    processes is shown for the one that answers, but for the locks themselves.

    Args:
        authorise: called with each request for these pages. They are refused with 403 unless
            it gives the operator's name (for the log), or True.
        mask: show lock ids as short hashes, the same for the same lock (in all processes, if
            the app has a `secret_key`), and requests by their routes.
        url_prefix: where the pages are.
    """

    def __init__(
        self, authorise: Authorise, *, mask: bool = False, url_prefix: str = "/userlock"
    ) -> None:
        if not callable(authorise):
            raise TypeError(
                "the inspector needs a function that says who may see it: "
                "inspector=lambda request: …"
            )
        self._authorise = authorise
        self._masks = mask
        self._url_prefix = url_prefix

    def init_app(self, app: flask.Flask, service: LockService | None) -> None:
        """Attach to an app, and count from now on. No service: the configured one's locks."""
        tally = Tally(SYSTEM_CLOCK, _endpoint)
        LISTENERS.add(tally.listen)
        if service is not None and service.listeners is not LISTENERS:
            service.listeners.add(tally.listen)
        mask = Mask(_mask_key(app) if self._masks else None, _Routes(app))
        pages = _Pages(self._authorise, lambda: service or default_service(), tally, mask)
        app.register_blueprint(pages.blueprint(self._url_prefix))


class _Pages:
    """The views of the blueprint."""

    def __init__(
        self,
        authorise: Authorise,
        service: Callable[[], LockService],
        tally: Tally,
        mask: Mask,
    ) -> None:
        self._authorise = authorise
        self._service = service
        self._tally = tally
        self._views = Views(service, tally, mask)
        self._mask = mask

    def blueprint(self, url_prefix: str) -> flask.Blueprint:
        pages = flask.Blueprint(
            "userlock_inspector",
            __name__,
            url_prefix=url_prefix,
            template_folder="templates",
            static_folder="static",
        )
        pages.before_request(self._check)
        pages.after_request(_harden)
        pages.add_url_rule("/", "home", lambda: self._page("locks"))
        pages.add_url_rule("/<name>", "page", self._page)
        pages.add_url_rule("/<name>.json", "document", self._document)
        pages.add_url_rule("/break", "ask", self._ask, methods=["POST"])
        pages.add_url_rule("/break/now", "break_", self._break, methods=["POST"])
        return pages

    # --- who may ------------------------------------------------------------------------------

    def _check(self) -> None:
        if flask.request.endpoint == "userlock_inspector.static":
            return  # a style sheet
        operator = self._authorise(flask.request)
        if not operator:
            flask.abort(403)
        flask.g.userlock_operator = operator if isinstance(operator, str) else ""
        if flask.request.method == "POST" and not _is_of_this_site(flask.request):
            flask.abort(403, "This was sent from another site.")

    # --- what there is ------------------------------------------------------------------------

    def _page(self, name: str) -> str:
        view = self._view(name)
        return self._render(
            "view.html",
            view=view,
            rows=[
                {key: _written(row.get(key), kind) for key, (_, kind) in view.columns.items()}
                | {"token": row.get("token", "")}
                for row in view.rows
            ],
            numbers={Kind.COUNT, Kind.SECONDS},
            code=Kind.CODE,
            masked=self._mask.masks,
            since=_written(self._tally.since, Kind.TIME),
        )

    def _document(self, name: str) -> flask.Response:
        view = self._view(name)
        return flask.jsonify(
            view=view.name,
            process=process_label(),
            since=snapshot.timestamp(self._tally.since),
            of_this_process_only=view.local,
            notes=view.notes,
            rows=[
                {key: value for key, value in row.items() if key != "token"} for row in view.rows
            ],
        )

    def _view(self, name: str) -> View:
        make = self._views.by_name.get(name)
        if make is None:
            flask.abort(404)
        return make()

    # --- breaking a lock ----------------------------------------------------------------------

    def _ask(self) -> tuple[str, int]:
        """Show whose it is, and what breaking it means."""
        lock_id = flask.request.form.get("lock_id", "")
        try:
            record = self._service().look(check_lock_id(lock_id))
        except ValueError as error:
            return self._told("Not a lock id", str(error)), 400
        except LockServiceUnavailable as error:
            return self._told("The lock store does not answer", error.reason), 503
        if record is None or record.free:
            return self._told("Nobody holds it", f"The lock {lock_id} is free."), 200
        wall = self._service().clock.wall()
        page = self._render(
            "break.html",
            lock_id=lock_id,
            holder=record.holder,
            request=self._mask.request(record.holder.request),
            held=_written(snapshot.held_seconds(record.holder, wall), Kind.SECONDS),
            waiters=len(record.waiters()),
            foreign=snapshot.is_foreign(record),
        )
        return page, 200

    def _break(self) -> tuple[str, int]:
        form = flask.request.form
        lock_id, token = form.get("lock_id", ""), form.get("token", "")
        operator = flask.g.userlock_operator or process_label()
        try:
            broken = self._service().break_lock(
                lock_id, by=f"{operator}, in the inspector", token=token
            )
        except ValueError as error:
            return self._told("Not a lock id", str(error)), 400
        except LockServiceUnavailable as error:
            return self._told("The lock store does not answer", error.reason), 503
        if broken is None:
            return self._told(
                "It has changed hands",
                "Whoever you looked at does not hold it any more. Nothing was done.",
            ), 409
        return self._told(
            "Broken",
            f"The lease on {lock_id} is over. Its holder finds out when it next asks; what it "
            "writes on what it had read before is refused.",
        ), 200

    # --- HTML ---------------------------------------------------------------------------------

    def _told(self, title: str, text: str) -> str:
        return self._render("told.html", title=title, text=text)

    def _render(self, template: str, **facts: Any) -> str:
        page = flask.render_template(
            f"userlock/{template}",
            names=list(self._views.by_name),
            process=process_label(),
            **facts,
        )
        # A lock id may be any string, also one that UTF-8 has no bytes for.
        return page.encode("utf-8", "backslashreplace").decode()


def _harden(response: flask.Response) -> flask.Response:
    response.headers.update(_HEADERS)
    return response


def _is_of_this_site(request: flask.Request) -> bool:
    """Return whether a form was sent by one of our own pages.

    Browsers say so. What sends neither header is no browser, and cannot be made
    to send the operator's credentials by another site.
    """
    origin = request.headers.get("Origin") or request.headers.get("Referer")
    return origin is None or urlsplit(origin).netloc == request.host


def _endpoint() -> str:
    """Return the route that this code runs for."""
    if not flask.has_request_context() or flask.request.url_rule is None:
        return ""
    return f"{flask.request.method} {flask.request.url_rule.rule}"


def _mask_key(app: flask.Flask) -> bytes:
    key = app.secret_key
    if not key:
        return secrets.token_bytes(32)
    return hashlib.sha256(
        b"userlock inspector" + (key.encode() if isinstance(key, str) else bytes(key))
    ).digest()


class _Routes:
    """Requests by their routes."""

    def __init__(self, app: flask.Flask) -> None:
        self._app = app

    def __call__(self, request: str) -> str:
        method, _, path = request.partition(" ")
        try:
            rule, _ = self._app.url_map.bind("localhost").match(
                path, method=method, return_rule=True
            )
        except (HTTPException, RequestRedirect):
            return f"{method} …" if path else "…"
        return f"{method} {rule.rule}"


def _written(value: Any, kind: Kind) -> str:
    """Return a value for people."""
    if value is None:
        return ""
    match kind:
        case Kind.COUNT:
            return f"{value:,}"
        case Kind.SECONDS:
            return _span(value)
        case Kind.TIME:
            moment = datetime.datetime.fromtimestamp(value, datetime.UTC)
            return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
        case _:
            return str(value)


def _span(seconds: float) -> str:
    """Return a stretch of time."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
