"""Gather the facts of each view of the inspector."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import flask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

import userlock.ids as ids
from userlock.admin import locks as reading
from userlock.admin.tables import Column
from userlock.contrib.inspector.tally import Tally, Waits
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.reports import violations
from userlock.words import counted

#: The most rows of a table. A note gives the number of the others.
_MOST_ROWS = 200
#: The most locks that are read one by one, if the store lists none.
_MOST_ASKED = 50

#: Characters that a form does not carry as they are.
_LOST = re.compile("[\r\n\0\ud800-\udfff]")

#: The facts about a lock, an endpoint or a put site.
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """The words of a view.

    Attributes:
        title: the heading.
        about: the introduction.
        empty: the text in place of a table without rows.
        columns: the columns.
    """

    title: str
    about: str
    empty: str
    columns: Sequence[Column]


_WAITS = (
    Column("locks", "Granted", "count"),
    Column("waited", "Waited", "count"),
    Column("timed_out", "Timed out", "count"),
    Column("rejected", "Rejected", "count"),
    Column("waited_seconds", "Total wait", "duration"),
    Column("longest_seconds", "Longest wait", "duration"),
)

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


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """The rows of a table.

    Attributes:
        rows: the facts.
        notes: what is missing, and other remarks.
        local: whether the facts are about this process only.
    """

    rows: list[Row]
    notes: list[str] = dataclasses.field(default_factory=list)
    local: bool = True


def route_of(app: flask.Flask, request: str) -> str | None:
    """Return a request by its route, as POST /users/<user_id>, if the app has one for it."""
    method, _, path = request.partition(" ")
    try:
        rule, _ = app.url_map.bind("localhost").match(path, method=method, return_rule=True)
    except (HTTPException, RequestRedirect, ValueError):
        return None
    return f"{method} {rule.rule}"


class Views:
    """The views of one app in one process. Lock ids and requests are shown as configured.

    Args:
        service: returns the lock service.
        tally: the counts of this process.
        app: its routes name requests, where their paths are hidden.
    """

    def __init__(self, service: Callable[[], LockService], tally: Tally, app: flask.Flask) -> None:
        self._service = service
        self._tally = tally
        self.request = functools.partial(
            ids.show_request, route_of=functools.partial(route_of, app)
        )
        self.by_name: dict[str, Callable[[], View]] = {name: getattr(self, name) for name in TABLES}

    def locks(self) -> View:
        """Return holders and waiters, the lock with the longest wait first."""
        service = self._service()
        notes, rows = [], []
        try:
            sample = reading.take(service, [], service.clock.wall())
        except StoreUnavailable as trouble:
            notes.append(f"The lock store does not answer: {trouble.reason}.")
        else:
            if sample.note:
                notes.append(f"Not complete: {sample.note}.")
                if not sample.locks:
                    # At least the locks that this process has waited for.
                    known = list(self._tally.by_lock.copy())[-_MOST_ASKED:]
                    sample = reading.take(service, known, sample.wall) if known else sample
            for seen in sample.select(everything=True):
                rows += self._rows_of(seen, sample.wall)
        if len(rows) > _MOST_ROWS:
            notes.append(f"{counted(len(rows) - _MOST_ROWS, 'more row')} not shown.")
        return View(rows[:_MOST_ROWS], notes, local=False)

    def _rows_of(self, seen: reading.LockState, wall: float) -> list[Row]:
        record = seen.record
        if record is None:
            return []
        rows: list[Row] = []
        if not record.free:
            facts = reading.holder_facts(record, wall)
            blocked = record.blocked_on
            waiting = "" if blocked is None else f", waiting for {ids.show(blocked.lock_id)}"
            rows.append(
                {
                    "lock_id": seen.shown,
                    "state": f"holder{waiting}",
                    "request": self.request(record.holder.request),
                    "priority": facts.get("priority", ""),
                    "seconds": facts.get("held_seconds"),
                    "process": facts["process"],
                    "token": record.holder.token,
                    "breaks": _breakable(seen) if record.holder.token else "",
                }
            )
        for number, waiter in enumerate(record.waiters(), start=1):
            rows.append(
                {
                    "lock_id": seen.shown,
                    "state": f"waiter {number}" + (" (aged)" if waiter.aged else ""),
                    "request": self.request(waiter.request),
                    "priority": waiter.priority,
                    "seconds": max(wall - waiter.since, 0.0),
                    "process": waiter.process,
                }
            )
        return rows

    def contention(self) -> View:
        """Return the locks that requests of this process waited for."""
        return _contention(
            (ids.show(lock_id), waits)
            for lock_id, waits in self._tally.by_lock.copy().items()
            if waits.waited or waits.rejected
        )

    def endpoints(self) -> View:
        """Return the endpoints that took locks."""
        return _contention(self._tally.by_endpoint.copy().items())

    def violations(self) -> View:
        """Return the put sites whose writes slipped past their lock."""
        return View([dataclasses.asdict(site) for site in violations()[:_MOST_ROWS]])


def _breakable(seen: reading.LockState) -> str:
    """Return the lock id for the form that breaks the lock; empty if it carries none."""
    carried = not seen.hashed and ids.are_plain() and len(seen.name) <= ids.MAX_CHARACTERS
    return seen.name if carried and not _LOST.search(seen.name) else ""


def _contention(waits: Iterable[tuple[str, Waits]]) -> View:
    """Return the longest total waits, by names."""
    ordered = sorted(waits, key=lambda item: -item[1].waited_seconds)[:_MOST_ROWS]
    return View(
        [
            {"name": name or "(not in a request)", **dataclasses.asdict(each)}
            for name, each in ordered
        ]
    )
