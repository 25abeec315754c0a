"""Serve the inspector's pages: an HTML table for each view, the same as JSON, breaking a lock."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import flask
from werkzeug.exceptions import NotFound

import userlock.ids as ids
from userlock.admin import locks as reading
from userlock.admin.tables import timestamp, utc
from userlock.clock import SYSTEM_CLOCK
from userlock.contrib.inspector.jobs import JobPages
from userlock.contrib.inspector.origin import is_of_this_site
from userlock.contrib.inspector.requests import RequestPages
from userlock.contrib.inspector.tally import Tally
from userlock.contrib.inspector.views import TABLES, View, Views
from userlock.errors import LockServiceUnavailable
from userlock.events import LISTENERS
from userlock.idempotency import Flows
from userlock.lock.configuration import default_service
from userlock.lock.lease import check_lock_id, process_label
from userlock.lock.service import LockService
from userlock.outbox.outbox import Outbox
from userlock.words import span

#: Decides who may see the pages. Returns the operator's name, for the log, or True.
Authorise = Callable[[flask.Request], bool | str | None]

#: Facts of rows that are for forms.
_OF_FORMS = ("token", "breaks")
_NAME = "userlock_inspector"
#: The seconds after which a page comes again, if that is wished.
_EVERY = "5"
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

    They show holders and waiters, contention by lock and by endpoint, and violations with
    both call sites, each also as JSON (`/userlock/locks.json`), and anew every five seconds
    (`?refresh=5`) until that is paused. An operator can break a lock, after a question;
    that is an event (`Broken`) with the operator's name. Locks, jobs and requests are those
    of all processes. All other facts are of the process that answers.

    `userlock.configure(show_ids=…)` hides lock ids, and shows requests by their
    routes. A lock can then be broken by its id, which has to be typed.

    Args:
        authorise: called with each request for these pages. The answer is 403 unless it
            returns the operator's name (for the log), or True.
        url_prefix: the address of the pages.
        outbox: the app's outbox, for the pages of its jobs. None: there are none, unless
            `UserLock` has an outbox.
        flows: the app's flows, for the pages of requests with an idempotency key. None: there
            are none.
        back_to: the address of a page of the app, for a link back. None: there is no link.
    """

    def __init__(
        self,
        authorise: Authorise,
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
        self._authorise = authorise
        self._url_prefix = url_prefix
        self._outbox = outbox
        self._flows = flows
        self._back_to = back_to

    def init_app(
        self, app: flask.Flask, service: LockService | None, outbox: Outbox | None = None
    ) -> None:
        """Attach to an app, and start to count. Without a service: the configured one."""
        outbox = outbox if self._outbox is None else self._outbox
        tally = Tally(SYSTEM_CLOCK, _endpoint)
        LISTENERS.add(tally.listen)
        if service is not None and service.listeners is not LISTENERS:
            service.listeners.add(tally.listen)
        pages = _Pages(
            self._authorise,
            lambda: service or default_service(),
            tally,
            app,
            outbox,
            self._flows,
            self._back_to,
        )
        app.register_blueprint(pages.blueprint(self._url_prefix))
        address = _Address(self._url_prefix)
        app.before_request(address.hide)
        app.after_request(address.harden)


class _Address:
    """All addresses under the inspector's, those without a route included.

    Flask authorises only requests that match a route. It answers others by itself: with a
    redirection of `//userlock/locks`, or with 405. Both would tell a stranger which routes there
    are.
    """

    def __init__(self, url_prefix: str) -> None:
        self._prefix = url_prefix.rstrip("/")

    def hide(self) -> None:
        """Answer 404 to each request that matches no route."""
        if flask.request.routing_exception is not None and self._covers(flask.request.path):
            flask.request.routing_exception = NotFound()

    def harden(self, response: flask.Response) -> flask.Response:
        """Keep the response from caches, frames and scripts."""
        if flask.request.blueprint == _NAME or self._covers(flask.request.path):
            response.headers.update(_HEADERS)
        return response

    def _covers(self, path: str) -> bool:
        path = re.sub("/+", "/", path)
        return bool(self._prefix) and f"{path}/".startswith(f"{self._prefix}/")


class _Pages:
    """The functions of the blueprint."""

    def __init__(
        self,
        authorise: Authorise,
        service: Callable[[], LockService],
        tally: Tally,
        app: flask.Flask,
        outbox: Outbox | None,
        flows: Flows | None,
        back_to: str | None,
    ) -> None:
        self._authorise = authorise
        self._back_to = back_to
        self._service = service
        self._tally = tally
        self._views = Views(service, tally, app)
        self._others: list[JobPages | RequestPages] = []
        if outbox is not None:
            self._others.append(JobPages(outbox, lambda: self._service().clock, self._render))
        if flows is not None:
            self._others.append(RequestPages(flows, service, self._render))
        #: The pages of all processes, and those of the one that answers.
        self._shared = ["locks", *(each.name for each in self._others)]
        self._local = [name for name in self._views.by_name if name != "locks"]

    def blueprint(self, url_prefix: str) -> flask.Blueprint:
        pages = flask.Blueprint(
            _NAME,
            __name__,
            url_prefix=url_prefix,
            template_folder="templates",
            static_folder="static",
        )
        pages.before_request(self._check)
        # Without a redirection from the address without the slash: that would come before the
        # check.
        pages.add_url_rule("/", "home", lambda: self._page("locks"), strict_slashes=False)
        pages.add_url_rule("/<name>", "page", self._page)
        pages.add_url_rule("/<name>.json", "document", self._document)
        pages.add_url_rule("/break", "ask", self._ask, methods=["POST"])
        pages.add_url_rule("/break/now", "break_", self._break, methods=["POST"])
        for each in self._others:
            each.add_to(pages)
        return pages

    # --- access -------------------------------------------------------------------------------

    def _check(self) -> None:
        if flask.request.endpoint == f"{_NAME}.static":
            return  # a style sheet
        operator = self._authorise(flask.request)
        if not operator:
            flask.abort(403)
        flask.g.userlock_operator = operator if isinstance(operator, str) else process_label()
        request = flask.request
        if request.method == "POST" and not is_of_this_site(
            request.headers, request.scheme, request.host
        ):
            flask.abort(403, "This was sent from another site.")

    # --- views --------------------------------------------------------------------------------

    def _page(self, name: str) -> str:
        return self._render(
            "view.html",
            name=name,
            view=self._view(name),
            table=TABLES[name],
            can_break=name == "locks" and ids.are_plain(),
            since=utc(self._tally.since),
        )

    def _document(self, name: str) -> flask.Response:
        view = self._view(name)
        return flask.jsonify(
            view=name,
            process=process_label(),
            since=timestamp(self._tally.since),
            of_this_process_only=view.local,
            notes=view.notes,
            rows=[
                {key: value for key, value in row.items() if key not in _OF_FORMS}
                for row in view.rows
            ],
        )

    def _view(self, name: str) -> View:
        make = self._views.by_name.get(name)
        if make is None:
            flask.abort(404)
        return make()

    # --- breaking a lock ----------------------------------------------------------------------

    def _ask(self) -> tuple[str, int]:
        """Show the holder, and what breaking the lock means."""
        lock_id = flask.request.form.get("lock_id", "")
        try:
            record = self._service().look(check_lock_id(lock_id))
        except (ValueError, LockServiceUnavailable) as error:
            return self._failed(error)
        if record is None or record.free:
            return self._message(
                "Lock not held", f"Nobody holds the lock “{ids.show(lock_id)}”."
            ), 200
        wall = self._service().clock.wall()
        page = self._render(
            "break.html",
            lock=ids.show(lock_id),
            # If ids are hidden, it is typed again.
            lock_id=lock_id if ids.are_plain() else "",
            token=record.holder.token,
            facts=None
            if reading.is_foreign(record)
            else {
                "holder": record.holder.process,
                "request": self._views.request(record.holder.request) or "(not known)",
                "priority": record.holder.priority,
                "held for": span(reading.held_seconds(record.holder, wall)),
                "waiters": f"{len(record.waiters())}",
            },
        )
        return page, 200

    def _break(self) -> tuple[str, int]:
        form = flask.request.form
        lock_id, token = form.get("lock_id", ""), form.get("token", "")
        operator = f"{flask.g.userlock_operator}, in the inspector"
        try:
            broken = self._service().break_lock(lock_id, by=operator, token=token)
        except (ValueError, LockServiceUnavailable) as error:
            return self._failed(error)
        if broken is None:
            text = "The holder that you saw no longer holds the lock. Nothing was broken."
            return self._message("Lock has changed hands", text), 409
        text = (
            f"The lease of the lock “{ids.show(lock_id)}” has ended. Its holder notices at its "
            "next renewal, extension or release. Datastore refuses its stale writes."
        )
        return self._message("Lock broken", text), 200

    def _failed(self, error: ValueError | LockServiceUnavailable) -> tuple[str, int]:
        if isinstance(error, LockServiceUnavailable):
            return self._message("The lock store does not answer", error.reason), 503
        return self._message("Not a lock id", str(error)), 400

    # --- HTML ---------------------------------------------------------------------------------

    def _message(self, title: str, text: str) -> str:
        return self._render("message.html", title=title, text=text)

    def _render(self, template: str, **facts: Any) -> str:
        page = flask.render_template(
            f"userlock/{template}",
            names={
                "All processes": self._shared,
                f"This process only: {process_label()}": self._local,
            },
            back_to=self._back_to,
            refresh=_refresh(),
            **facts,
        )
        # A lock id may be any string, even one that UTF-8 cannot encode.
        return page.encode("utf-8", "backslashreplace").decode()


def _refresh() -> tuple[bool, str] | None:
    """Return whether this page comes again by itself, and the address that changes that.

    None for pages that answer a form. A page comes again by a header: its forms and links need no
    script, and none runs here.
    """
    if flask.request.method != "GET":
        return None
    args = flask.request.args.to_dict()
    on = args.pop("refresh", "") == _EVERY
    if on:
        flask.after_this_request(_again)
    else:
        args["refresh"] = _EVERY
    return on, f"?{urlencode(args)}"


def _again(response: flask.Response) -> flask.Response:
    response.headers["Refresh"] = _EVERY
    return response


def _endpoint() -> str:
    """Return the route of the current request."""
    if not flask.has_request_context() or flask.request.url_rule is None:
        return ""
    return f"{flask.request.method} {flask.request.url_rule.rule}"
