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
from userlock.admin.snapshot import timestamp
from userlock.contrib.inspector.shared import Answer, Render, guarded, is_carried, moment
from userlock.contrib.inspector.tally import Tally
from userlock.idempotency import Answer as StoredAnswer
from userlock.idempotency import Flows, Request
from userlock.idempotency.answers import FIRST_UNSTORED
from userlock.lock.lease import process_label
from userlock.lock.scope import current_scope, scope
from userlock.lock.service import LockService
from userlock.ndb.context import current_context
from userlock.words import escaped, legible, span

log = logging.getLogger(__name__)

_MOST_LISTED = 100
_SHOWN = 300
#: In a list.
_SHOWN_IN_ROW = 60
#: Much longer than any key that is accepted.
_MOST_OF_KEY = 2_000

#: The outcomes of `RequestServed`, in the order of their columns.
_OUTCOMES = (
    *("done", "resumed", "replayed", "unfinished"),
    *("running", "taken over", "reused", "malformed"),
)
#: The one who can complete a request: in a list, and in a sentence.
_SERVER = "server", "the server or its client"
_ELSEWHERE = "another process", "a process that has its function, or its client"
_CLIENT = "client", "its client alone"


class RequestPages:
    """The functions of the pages.

    Args:
        flows: the app's flows.
        service: returns the lock service.
        tally: the counts of this process.
        render: renders a template.
    """

    def __init__(
        self, flows: Flows, service: Callable[[], LockService], tally: Tally, render: Render
    ) -> None:
        self._flows = flows
        self._service = service
        self._tally = tally
        self._render = render

    def add_to(self, pages: flask.Blueprint) -> None:
        """Add the routes. Keys are in no address: addresses are logged."""
        for rule, name, view, method in (
            ("/requests", "requests", self._list, "GET"),
            ("/requests.json", "requests_document", self._document, "GET"),
            ("/requests/find", "find_requests", self._list, "POST"),
            ("/requests/show", "find_request", self._show, "POST"),
            ("/requests/show.json", "request_document", self._show_document, "POST"),
            ("/requests/complete", "ask_complete", self._ask, "POST"),
            ("/requests/complete/now", "complete", self._complete, "POST"),
        ):
            view = guarded(view, self._flows.context, self._message)
            pages.add_url_rule(rule, name, view, methods=[method])

    # --- lists --------------------------------------------------------------------------------

    def _list(self) -> str:
        listing = self._listing()
        plain = ids.are_plain()
        return self._render(
            "requests.html",
            name="requests",
            figures=listing["counts"],
            notes=listing["notes"],
            user=ids.show(listing["user"]) if listing["user"] else "",
            typed_user=listing["user"] if plain and is_carried(listing["user"]) else "",
            unfinished=[self._row(each, listing) for each in listing["unfinished"]],
            finished=[self._row(each, listing) for each in listing["finished"]],
            outcomes=_OUTCOMES,
            flows=[(legible(flow, _SHOWN), counts) for flow, counts in self._tally.outcomes()],
            since=moment(self._tally.since),
            plain=plain,
        )

    def _document(self) -> flask.Response:
        listing = self._listing()
        return flask.jsonify(
            view="requests",
            process=process_label(),
            user=ids.show(listing["user"]) if listing["user"] else None,
            counts=listing["counts"],
            notes=listing["notes"],
            unfinished=[self._facts(each, listing) for each in listing["unfinished"]],
            finished=[self._facts(each, listing) for each in listing["finished"]],
            outcomes={
                "of_this_process_only": True,
                "since": timestamp(self._tally.since),
                "flows": {
                    legible(flow, _SHOWN): {each: counts.get(each, 0) for each in _OUTCOMES}
                    for flow, counts in self._tally.outcomes()
                },
            },
        )

    def _listing(self) -> dict[str, Any]:
        """Return the requests of a user, or of all, with their counts."""
        user = flask.request.values.get("user", "")
        unfinished: list[reading.Found] = []
        finished: list[reading.Found] = []
        notes: list[str] = []
        if len(user) > ids.MAX_CHARACTERS:
            notes.append("No user has so long an id.")
        else:
            unfinished = reading.unfinished(_MOST_LISTED, user)
            finished = reading.finished(_MOST_LISTED, user)
        wall = self._service().clock.wall()
        is_held = reading.Holders(self._service())
        states = [reading.state_of(each, wall, is_held) for each in unfinished]
        counts = {
            "running": states.count("running"),
            "stuck": states.count("stuck"),
            "finished": len(finished),
            "resumed": sum(each.attempts > 1 for each in finished),
        }
        if user:
            if _MOST_LISTED in (len(unfinished), len(finished)):
                notes.append(f"Up to {_MOST_LISTED} of each table are listed and counted.")
        else:
            total = reading.count()
            counts["finished"] = total.finished
            if total.unfinished > len(unfinished):
                notes.append(
                    f"{total.unfinished:,} requests are unfinished. The first {len(unfinished)} "
                    f"are listed and counted."
                )
            if total.finished > len(finished):
                notes.append(f"Resumed: of the {len(finished)} finished ones that are listed.")
            if total.note:
                notes.append(f"{total.note}.")
        if is_held.note:
            notes.append(
                f"The lock store does not answer ({is_held.note}). Requests of more than a minute "
                f"count as stuck, and may be running."
            )
        return {
            "user": user,
            "wall": wall,
            "is_held": is_held,
            "counts": counts,
            "notes": notes,
            "unfinished": unfinished,
            "finished": finished,
        }

    @staticmethod
    def _facts(found: reading.Found, listing: dict[str, Any]) -> dict[str, Any]:
        return reading.facts(found, listing["wall"], listing["is_held"])

    def _row(self, found: reading.Found, listing: dict[str, Any]) -> dict[str, Any]:
        wall = listing["wall"]
        left = found.expires_at - wall
        since = found.finished_at or found.begun_at
        facts = self._facts(found, listing)
        return {
            **facts,
            "since": span(wall - since) if since else "",
            "kept": f"for {span(left)}" if left > 0 else "no longer",
            "request": legible(facts["request"], _SHOWN_IN_ROW),
            "points": legible(", ".join(facts["points"]), _SHOWN_IN_ROW),
            "by": "" if found.malformed else self._by(found)[0],
            "posted": _posted(found),
        }

    def _by(self, found: reading.Found) -> tuple[str, str]:
        """Return the one who can complete a request."""
        if not found.completable:
            return _CLIENT
        return _SERVER if self._flows.is_registered(found.flow) else _ELSEWHERE

    # --- one request --------------------------------------------------------------------------

    def _show(self) -> Answer:
        found = self._named()
        if found is None:
            return self._missing()
        return self._render("request.html", name="requests", **self._page_of(found))

    def _page_of(self, found: reading.Found) -> dict[str, Any]:
        wall = self._service().clock.wall()
        is_held = reading.Holders(self._service())
        facts = reading.facts(found, wall, is_held)
        moments = [
            ("Begun", found.begun_at),
            ("Finished", found.finished_at),
            ("Kept until", found.expires_at),
        ]
        return {
            "found": facts,
            "since": span(wall - found.begun_at) if found.status is None else "",
            "moments": [(label, moment(at)) for label, at in moments if at],
            "note": is_held.note,
            "by": "" if found.status is not None or found.malformed else self._by(found)[1],
            "can_complete": self._to_complete(found, facts["state"]) is not None,
            "posted": _posted(found),
            "stamp": found.stamp,
        }

    def _show_document(self) -> flask.Response:
        found = self._named()
        if found is None:
            flask.abort(404)
        wall = self._service().clock.wall()
        return flask.jsonify(reading.facts(found, wall, reading.Holders(self._service())))

    @staticmethod
    def _named() -> reading.Found | None:
        """Return the request that a form names, if there is one."""
        user = flask.request.form.get("user", "")
        key = flask.request.form.get("key", "")
        named = 0 < len(user) <= ids.MAX_CHARACTERS and 0 < len(key) <= _MOST_OF_KEY
        return reading.read(user, key) if named else None

    # --- completion ---------------------------------------------------------------------------

    def _ask(self) -> Answer:
        """Show the request, and what its completion means."""
        found = self._named()
        if found is None:
            return self._missing()
        facts = self._page_of(found)
        if not facts["can_complete"]:
            return self._refused()
        return self._render("complete.html", name="requests", **facts)

    def _complete(self) -> Answer:
        found = self._named()
        if found is None:
            return self._missing()
        given = flask.request.form.get("stamp", "").encode("utf-8", "surrogatepass")
        if not found.stamp or not hmac.compare_digest(found.stamp.encode(), given):
            text = "The request has changed since you looked. Nothing was done. Look again."
            return self._message("Request has changed", text), 409
        wall = self._service().clock.wall()
        state = reading.state_of(found, wall, reading.Holders(self._service()))
        request = self._to_complete(found, state)
        if request is None:
            return self._refused()
        log.warning(
            "request %s of %s: completion begun by %s, in the inspector",
            legible(request.flow, _SHOWN),
            ids.quoted(request.user_id),
            escaped(flask.g.userlock_operator),
        )
        answer = _apart(lambda: self._flows.complete_one(request), self._service())
        if answer is None:
            text = "It has failed again, and is unfinished. The log of this process says why."
            return self._message("Request not complete", text)
        if answer.status >= FIRST_UNSTORED:
            text = f"It was answered with {answer.status}, and is unfinished."
            return self._message("Request not complete", text)
        text = f"It was answered with {answer.status}. Its client gets that answer if it comes."
        return self._message("Request completed", text)

    def _to_complete(self, found: reading.Found, state: str) -> Request | None:
        """Return a stuck request that this process can complete; None if it is none."""
        return self._flows.find(found.user, found.key) if state == "stuck" else None

    # --- messages -----------------------------------------------------------------------------

    def _missing(self) -> Answer:
        text = "Its answer is no longer kept, or it never was."
        return self._message("No such request", text), 404

    def _refused(self) -> Answer:
        text = (
            "It is running or done, or this process cannot complete it: its parameters are not "
            "stored, or it has no such function. Nothing was done."
        )
        return self._message("Request cannot be completed", text), 409

    def _message(self, title: str, text: str) -> str:
        return self._render(
            "message.html", name="requests", title=title, text=text, back="requests"
        )


def _posted(found: reading.Found) -> dict[str, str] | None:
    """Return the fields that name a request in a form; None if they have to be typed."""
    if not (ids.are_plain() and is_carried(found.user) and is_carried(found.key)):
        return None
    return {"user": found.user, "key": found.key}


def _apart(complete: Callable[[], StoredAnswer | None], service: LockService) -> Any:
    """Run a completion without the operator's request.

    A view that asks for the request, the session or `g` must find none, as in a job. It would
    take the operator's for its client's.
    """
    outer, context = current_scope(), current_context()

    def run() -> StoredAnswer | None:
        settings = None if outer is None else outer.settings
        with context.use(), scope(service, settings=settings):
            return complete()

    return contextvars.Context().run(run)
