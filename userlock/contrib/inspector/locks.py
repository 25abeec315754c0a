"""Serve the inspector's pages of locks, contention and violations, and break a lock."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import flask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

import userlock.ids as ids
from userlock.admin import locks as reading
from userlock.admin.rendering import Column, Facts, Moment, utc
from userlock.clock import SYSTEM_CLOCK
from userlock.contrib.inspector.shared import Answer, Pages, form, is_carried
from userlock.events import Acquired, Event, Rejected, TimedOut
from userlock.fork import reset_in_child
from userlock.lock.lease import Holder, check_lock_id, process_label
from userlock.lock.record import Waiter
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.reports import violations
from userlock.words import counted, span

#: The most locks, and the most endpoints, whose waits are counted; the most rows of a table.
_MOST_COUNTED, _MOST_ROWS = 1_000, 200
#: The lock id for the form that breaks the lock. It is not in the document.
_OF_FORM = "breaks"

_WAITS = (
    Column("locks", "Granted", "count"),
    Column("waited", "Waited", "count"),
    Column("timed_out", "Timed out", "count"),
    Column("rejected", "Rejected", "count"),
    Column("waited_seconds", "Total wait", "duration"),
    Column("longest_seconds", "Longest wait", "duration"),
)
_NO_WAITS = {each.key: 0.0 if each.kind == "duration" else 0 for each in _WAITS}


class Table(NamedTuple):
    """The words and the columns of a page; `empty`: the text in place of a table without rows."""

    title: str
    about: str
    empty: str
    columns: tuple[Column, ...]


TABLES = {
    "locks": Table(
        "Locks",
        "Holders and waiters in all processes that share the lock store. Waiters are in queue "
        "order.",
        "No locks are held.",
        (
            Column("lock_id", "Lock", "code"),
            Column("state", "State"),
            Column("request", "Request", "code"),
            Column("priority", "Priority"),
            Column("seconds", "Duration", "duration"),
            Column("process", "Process"),
        ),
    ),
    "contention": Table(
        "Contention by lock",
        "Locks that requests of this process waited for, the longest total wait first.",
        "No waits so far.",
        (Column("name", "Lock", "code"), *_WAITS),
    ),
    "endpoints": Table(
        "Contention by endpoint",
        "Endpoints that took locks in this process, the longest total wait first.",
        "No locks so far.",
        (Column("name", "Endpoint", "code"), *_WAITS),
    ),
    "violations": Table(
        "Violations",
        "Put sites whose writes slipped past their lock. The app's settings decide whether such "
        "writes are refused, or only logged.",
        "No violations so far.",
        (
            Column("violation", "Violation"),
            Column("kind", "Kind"),
            Column("count", "Count", "count"),
            Column("put_at", "Put at", "code"),
            Column("read_at", "Read at", "code"),
            Column("since", "First", "moment"),
        ),
    ),
}


class Tally:
    """Counts waits of this process, by lock and by endpoint, the latest last. Thread-safe.

    A row has calls by their ends, and seconds, as in `_WAITS`. Rejected calls have not waited.
    """

    def __init__(self) -> None:
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self.since = SYSTEM_CLOCK.wall()
        self.by_lock: collections.OrderedDict[str, Facts] = collections.OrderedDict()
        self.by_endpoint: collections.OrderedDict[str, Facts] = collections.OrderedDict()

    def listen(self, event: Event) -> None:
        match event:
            case Acquired(lock_id=str(lock_id), waited_seconds=waited, blocked_by=blocked_by):
                self._count_wait(lock_id, "locks", waited if blocked_by else 0.0)
            case TimedOut(lock_id=str(lock_id), waited_seconds=waited):
                self._count_wait(lock_id, "timed_out", waited)
            case Rejected(lock_id=str(lock_id)):
                self._count_wait(lock_id, "rejected", 0.0)

    def _count_wait(self, lock_id: str, outcome: str, seconds: float) -> None:
        rule = flask.request.url_rule if flask.has_request_context() else None
        endpoint = "" if rule is None else f"{flask.request.method} {rule.rule}"
        waited = seconds > 0 or outcome == "timed_out"
        with self._mutex:
            for table, name in ((self.by_lock, lock_id), (self.by_endpoint, endpoint)):
                # Locks without any wait would push out the others.
                uneventful = outcome == "locks" and not waited
                if uneventful and table is self.by_lock and name not in table:
                    continue
                row = table.setdefault(name, dict(_NO_WAITS))
                row[outcome] += 1
                if waited:
                    row["waited"] += 1
                    row["waited_seconds"] += seconds
                    row["longest_seconds"] = max(row["longest_seconds"], seconds)
                if not uneventful:
                    table.move_to_end(name)
                if len(table) > _MOST_COUNTED:
                    table.popitem(last=False)


def route_of(app: flask.Flask, request: str) -> str | None:
    """Return a request by its route, as POST /users/<user_id>, if the app has one for it."""
    method, _, path = request.partition(" ")
    try:
        rule, _ = app.url_map.bind("localhost").match(path, method=method, return_rule=True)
    except (HTTPException, RequestRedirect, ValueError):
        return None
    return f"{method} {rule.rule}"


class LockPages(Pages):
    """The pages of locks. The app's routes name requests, where their paths are hidden."""

    name, home = "locks", "home"

    def __init__(self, service: Callable[[], LockService], tally: Tally, app: flask.Flask) -> None:
        super().__init__(service)
        self._tally = tally
        self._app = app

    def _request(self, request: str) -> str:
        return ids.show_request(request, lambda given: route_of(self._app, given))

    def add_to(self, pages: flask.Blueprint) -> None:
        # Without a redirection from the address without the slash, which would precede the check.
        home = self.guarded(lambda: self._page("locks"))
        pages.add_url_rule("/", "home", home, strict_slashes=False)
        pages.add_url_rule("/<name>", "page", self.guarded(self._page))
        pages.add_url_rule("/<name>.json", "document", self.guarded(self._document))
        pages.add_url_rule("/break", "ask", self.guarded(self._ask), methods=["POST"])
        pages.add_url_rule("/break/now", "break_", self.guarded(self._break), methods=["POST"])

    def _page(self, name: str) -> str:
        rows, notes = self._rows(name)
        return self.render(
            "view.html",
            name=name,
            table=TABLES[name],
            rows=rows,
            notes=notes,
            can_break=name == "locks" and ids.are_plain(),
            since=utc(self._tally.since),
        )

    def _document(self, name: str) -> Facts:
        rows, notes = self._rows(name)
        for row in rows:
            row.pop(_OF_FORM, None)
        return {
            "view": name,
            "process": process_label(),
            "since": Moment(self._tally.since),
            "of_this_process_only": name != "locks",
            "notes": notes,
            "rows": rows,
        }

    def _rows(self, name: str) -> tuple[list[Facts], list[str]]:
        tally = self._tally
        notes: list[str] = []
        if name == "locks":
            rows, notes = self._locks()
        elif name == "contention":
            locks = tally.by_lock.copy().items()
            waits = {ids.show(each): row for each, row in locks if row["waited"] or row["rejected"]}
            rows = _longest_first(waits)
        elif name == "endpoints":
            rows = _longest_first(tally.by_endpoint.copy())
        elif name == "violations":
            rows = [dataclasses.asdict(site) for site in violations()]
        else:
            flask.abort(404)
        if len(rows) > _MOST_ROWS:
            notes.append(f"{counted(len(rows) - _MOST_ROWS, 'more row')} not shown.")
        return rows[:_MOST_ROWS], notes

    def _locks(self) -> tuple[list[Facts], list[str]]:
        service = self._service()
        wall = service.clock.wall()
        try:
            found = reading.take(service, [])
        except StoreUnavailable as trouble:
            return [], [f"The lock store does not answer: {trouble.reason}."]
        locks = found.select(wall, everything=True)
        rows = [row for each in locks for row in self._rows_of(each, wall)]
        return rows, [f"Not complete: {found.note}."] if found.note else []

    def _rows_of(self, seen: reading.LockState, wall: float) -> Iterator[Facts]:
        record = seen.record
        if record is None:
            return

        def row(state: str, party: Holder | Waiter) -> Facts:
            return {
                "lock_id": seen.shown,
                "state": state,
                "request": self._request(party.request),
                "priority": party.priority,
                "seconds": max(wall - party.since, 0.0),
                "process": party.process,
            }

        if not record.free:
            blocked = record.blocked_on
            waiting = "" if blocked is None else f", waiting for {ids.show(blocked.lock_id)}"
            found = {**row(f"holder{waiting}", record.holder), _OF_FORM: _breakable(seen)}
            foreign = {"priority": "", "seconds": None, "process": reading.FOREIGN, _OF_FORM: ""}
            yield {**found, **foreign} if reading.is_foreign(record) else found
        for number, waiter in enumerate(record.waiters(), start=1):
            yield row(f"waiter {number}" + (" (aged)" if waiter.aged else ""), waiter)

    def _ask(self) -> Answer:
        (lock_id,) = form("lock_id")
        try:
            record = self._service().look(check_lock_id(lock_id))
        except ValueError as error:
            return self.message("Not a lock id", str(error), 400)
        if record is None or record.free:
            return self.message("Lock not held", f"Nobody holds the lock “{ids.show(lock_id)}”.")
        holder = record.holder
        facts = {
            "holder": holder.process,
            "request": self._request(holder.request) or "(not known)",
            "priority": holder.priority,
            "held for": span(reading.held_seconds(holder, self._service().clock.wall())),
            "waiters": f"{len(record.waiters())}",
        }
        return self.render(
            "break.html",
            lock=ids.show(lock_id),
            # If ids are hidden, it is typed again.
            lock_id=lock_id if ids.are_plain() else "",
            token=holder.token,
            facts=None if reading.is_foreign(record) else facts,
        )

    def _break(self) -> Answer:
        lock_id, token = form("lock_id", "token")
        operator = f"{flask.g.userlock_operator}, in the inspector"
        try:
            broken = self._service().break_lock(lock_id, by=operator, token=token)
        except ValueError as error:
            return self.message("Not a lock id", str(error), 400)
        if broken is None:
            text = "The holder that you saw no longer holds the lock. Nothing was broken."
            return self.message("Lock has changed hands", text, 409)
        text = f"The lease of the lock “{ids.show(lock_id)}” has ended. Its holder notices at its "
        text += "next renewal, extension or release. Datastore refuses its stale writes."
        return self.message("Lock broken", text)


def _breakable(seen: reading.LockState) -> str:
    """Return the lock id for the form that breaks the lock; empty if it carries none."""
    short = not seen.hashed and len(seen.name) <= ids.MAX_CHARACTERS
    return seen.name if short and ids.are_plain() and is_carried(seen.name) else ""


def _longest_first(waits: Mapping[str, Facts]) -> list[Facts]:
    ordered = sorted(waits.items(), key=lambda item: -item[1]["waited_seconds"])
    return [{"name": name or "(not in a request)", **each} for name, each in ordered]
