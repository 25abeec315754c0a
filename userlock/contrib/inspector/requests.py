"""Serve the inspector's pages of requests with an idempotency key: lists, one request, completion.

A question comes before a completion. Its form has a stamp of the attempt that was shown:
another site cannot know it, and if the request has changed meanwhile, nothing is done.
"""

from __future__ import annotations

import contextvars
import hmac
import logging
from collections.abc import Callable
from typing import Any

import flask

import userlock.ids as ids
from userlock.admin import requests as reading
from userlock.admin.rendering import Facts, filled, utc
from userlock.contrib.inspector.shared import SHOWN, Answer, Pages, form, is_carried
from userlock.idempotency import Answer as StoredAnswer
from userlock.idempotency import Flows, Request
from userlock.idempotency.answers import is_kept
from userlock.lock.lease import process_label
from userlock.lock.scope import current_scope, scope
from userlock.lock.service import LockService
from userlock.ndb.context import current_context
from userlock.ndb.owners import current_namespace
from userlock.words import escaped, legible

log = logging.getLogger(__name__)

_MOST_LISTED = 100
_TABLES = (
    ("unfinished", reading.UNFINISHED, "No requests are unfinished."),
    ("finished", reading.FINISHED, "No answers are kept."),
)
#: Much longer than any key that is accepted.
_MOST_OF_KEY = 2_000
_TYPED = {"key": "Type its key again", "user": "and its user"}


class RequestPages(Pages):
    name = home = "requests"

    def __init__(self, service: Callable[[], LockService], flows: Flows) -> None:
        super().__init__(service, flows.context)
        self._flows = flows

    def add_to(self, pages: flask.Blueprint) -> None:
        # Keys are in no address: addresses are logged.
        self.add(pages, "GET", "", "requests", self._list)
        self.add(pages, "GET", ".json", "requests_document", self._document)
        self.add(pages, "POST", "/find", "find_requests", self._list)
        self.add(pages, "POST", "/show", "find_request", self._show)
        self.add(pages, "POST", "/complete", "ask_complete", self._ask)
        self.add(pages, "POST", "/complete/now", "complete", self._complete)

    def _shown(self) -> reading.Shown:
        service = self._service()
        return reading.Shown(self._flows, service, service.clock.wall())

    def _list(self) -> str:
        user, shown, found, facts = self._listing()
        tables = []
        for title, columns, empty in _TABLES:
            rows = [_row(each, shown) for each in found[title]]
            tables.append((title, filled(columns, rows), rows, empty))
        return self.render(
            "requests.html",
            **facts,
            namespace=current_namespace(),
            typed_user=user if ids.are_plain() and is_carried(user) else "",
            tables=tables,
        )

    def _document(self) -> Facts:
        _, shown, found, facts = self._listing()
        lists = {name: [shown.facts(each) for each in some] for name, some in found.items()}
        return {"view": "requests", "process": process_label(), **facts, **lists}

    def _listing(self) -> tuple[str, reading.Shown, dict[str, list[reading.Found]], Facts]:
        """Return the user that was asked for, the requests, and the facts about all of them."""
        user = flask.request.values.get("user", "")
        fits = len(user) <= ids.MAX_CHARACTERS
        notes = [] if fits else ["No user has so long an id."]
        unfinished = reading.listed(_MOST_LISTED, user, done=False) if fits else []
        finished = reading.listed(_MOST_LISTED, user, done=True) if fits else []
        shown = self._shown()
        states = [shown.state(each) for each in unfinished]
        if _MOST_LISTED in (len(unfinished), len(finished)):
            notes.append(f"Up to {_MOST_LISTED} of each table are listed and counted.")
        if shown.note:
            text = "Requests of more than a minute count as stuck, and may be running."
            notes.append(f"The lock store does not answer ({shown.note}). {text}")
        counts = {
            "running": states.count("running"),
            "stuck": states.count("stuck"),
            "finished": len(finished),
            "resumed": sum(each.attempts > 1 for each in finished),
        }
        found = {"unfinished": unfinished, "finished": finished}
        facts = {"user": ids.show(user) if user else None, "counts": counts, "notes": notes}
        return user, shown, found, facts

    def _show(self) -> Answer:
        found, shown = self._named(), self._shown()
        page = self._page_of(found, shown)
        return self.render("request.html", **page, can_complete=bool(self._stuck(found, shown)))

    @staticmethod
    def _page_of(found: reading.Found, shown: reading.Shown) -> dict[str, Any]:
        facts = shown.details(found, utc)
        return {
            "facts": facts,
            "flow": facts["flow"],
            "note": shown.note,
            "stamp": found.stamp,
            **_fields(found),
        }

    def _named(self) -> reading.Found:
        user, key = form("user", "key")
        namespace = flask.request.form.get("namespace", current_namespace())
        found = None
        is_name = 0 < len(user) <= ids.MAX_CHARACTERS and 0 < len(key) <= _MOST_OF_KEY
        if is_name and ids.NAMESPACE.fullmatch(namespace):
            found = reading.read(user, key, namespace)
        if found is None:
            text = "Its answer is no longer kept, or it never was."
            self.refuse("No such request", text, 404)
        return found

    def _ask(self) -> Answer:
        found, shown = self._named(), self._shown()
        self._to_complete(found, shown)
        return self.render("complete.html", **self._page_of(found, shown))

    def _complete(self) -> Answer:
        found = self._named()
        given = form("stamp")[0].encode("utf-8", "surrogatepass")
        if not found.stamp or not hmac.compare_digest(found.stamp.encode(), given):
            text = "The request has changed since you looked. Nothing was done. Look again."
            return self.message("Request has changed", text, 409)
        request = self._to_complete(found, self._shown())
        flow, operator = legible(request.flow, SHOWN), escaped(flask.g.userlock_operator)
        text = "request %s of %s: completion begun by %s, in the inspector"
        log.warning(text, flow, ids.quoted(request.user_id), operator)
        answer = _apart(lambda: self._flows.complete_one(request), self._service())
        title = "Request not complete"
        if answer is None:
            text = "It has failed again, and is unfinished. The log of this process says why."
        elif not is_kept(answer.status):
            text = f"It was answered with {answer.status}, and is unfinished."
        else:
            title = "Request completed"
            text = f"It was answered with {answer.status}. Its client gets that answer if it comes."
        return self.message(title, text)

    def _stuck(self, found: reading.Found, shown: reading.Shown) -> Request | None:
        """Return a stuck request that this process can complete; None if it is none."""
        stuck = shown.state(found) == "stuck"
        return reading.to_complete(found, self._flows) if stuck else None

    def _to_complete(self, found: reading.Found, shown: reading.Shown) -> Request:
        request = self._stuck(found, shown)
        if request is None:
            text = "It is running or done, or this process cannot complete it: its parameters are "
            text += "not stored, or it has no such function. Nothing was done."
            self.refuse("Request cannot be completed", text, 409)
        return request


def _row(found: reading.Found, shown: reading.Shown) -> dict[str, Any]:
    row = {**shown.row(found), **_fields(found)}
    return {**row, "status": row["state"] if row["status"] is None else row["status"]}


def _fields(found: reading.Found) -> dict[str, dict[str, str]]:
    """Return the fields that name a request in a form: hidden ones, and those to be typed."""
    hidden = {"user": found.user, "key": found.key, "namespace": found.namespace}
    if ids.are_plain() and is_carried(found.user) and is_carried(found.key):
        return {"posted": hidden, "typed": {}}
    return {"posted": {"namespace": found.namespace}, "typed": _TYPED}


def _apart(complete: Callable[[], StoredAnswer | None], service: LockService) -> Any:
    """Run a completion without the operator's request, which a view would take for its client's."""
    outer, context = current_scope(), current_context()

    def run() -> StoredAnswer | None:
        settings = None if outer is None else outer.settings
        with context.use(), scope(service, settings=settings):
            return complete()

    return contextvars.Context().run(run)
