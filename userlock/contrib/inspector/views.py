"""Gather the facts of each view of the inspector, as a table."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import flask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

from userlock.contrib.inspector.tally import Tally, Waits
from userlock.lock import survey
from userlock.lock.lease import process_label
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.reports import violations
from userlock.words import counted

#: The most rows of a table. A note gives the number of the others.
_MOST_ROWS = 200
#: The most locks that are read one by one, if the store lists none.
_MOST_ASKED = 50


class Kind(enum.StrEnum):
    """The kinds of values in a column; also the names of their CSS classes."""

    TEXT = "text"
    COUNT = "count"
    #: A duration in seconds.
    DURATION = "duration"
    #: A moment in seconds since 1970.
    MOMENT = "moment"
    CODE = "code"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A table.

    Attributes:
        title, about: the heading and the introduction.
        columns: a title and a kind for each key of the rows.
        rows: the facts.
        notes: what is missing, and other remarks.
        local: whether the facts are about this process only.
        empty: a text to show if there is no row.
    """

    title: str
    about: str
    columns: Mapping[str, tuple[str, Kind]]
    rows: list[dict[str, Any]]
    empty: str
    notes: list[str] = dataclasses.field(default_factory=list)
    local: bool = True


class Unmasked:
    """Writes lock ids and requests as they are."""

    masks = False

    def lock_id(self, lock_id: str) -> str:
        return lock_id

    def request(self, request: str) -> str:
        return request


class Mask(Unmasked):
    """Writes lock ids as short hashes, and requests by their routes: POST /users/<user_id>."""

    masks = True

    def __init__(self, app: flask.Flask) -> None:
        self._app = app
        secret = app.secret_key or secrets.token_bytes(32)
        secret = secret.encode() if isinstance(secret, str) else bytes(secret)
        self._key = hashlib.sha256(b"userlock inspector" + secret).digest()

    def lock_id(self, lock_id: str) -> str:
        return "•" + hashlib.blake2b(lock_id.encode(), digest_size=5, key=self._key).hexdigest()

    def request(self, request: str) -> str:
        method, _, path = request.partition(" ")
        try:
            rule, _ = self._app.url_map.bind("localhost").match(
                path, method=method, return_rule=True
            )
        except (HTTPException, RequestRedirect):
            return f"{method} …" if path else "…"
        return f"{method} {rule.rule}"


class Views:
    """The views of one app in one process.

    Args:
        service: returns the lock service.
        tally: the counts of this process.
        mask: writes lock ids and requests.
    """

    def __init__(self, service: Callable[[], LockService], tally: Tally, mask: Unmasked) -> None:
        self._service = service
        self._tally = tally
        self._mask = mask
        self.by_name: dict[str, Callable[[], View]] = {
            "locks": self.locks,
            "contention": self.contention,
            "endpoints": self.endpoints,
            "violations": self.violations,
            "outages": self.outages,
            "heartbeats": self.heartbeats,
        }

    def locks(self) -> View:
        """Return holders and waiters, the lock with the longest wait first."""
        service = self._service()
        notes, rows = [], []
        try:
            sample = survey.take(service, [], service.clock.wall())
        except StoreUnavailable as trouble:
            notes.append(f"The lock store does not answer: {trouble.reason}.")
        else:
            if sample.note:
                notes.append(f"Not complete: {sample.note}.")
                if not sample.locks:
                    # At least the locks that this process has waited for.
                    known = list(self._tally.by_lock.copy())[-_MOST_ASKED:]
                    sample = survey.take(service, known, sample.wall) if known else sample
            for seen in sample.interesting(everything=True):
                rows += self._rows_of(seen, sample.wall)
        if len(rows) > _MOST_ROWS:
            notes.append(f"{counted(len(rows) - _MOST_ROWS, 'more row')} not shown.")
        return View(
            title="Locks",
            about="Holders and waiters in all processes that share the lock store. Waiters are in "
            "queue order.",
            columns={
                "lock_id": ("Lock", Kind.CODE),
                "state": ("State", Kind.TEXT),
                "request": ("Request", Kind.CODE),
                "priority": ("Priority", Kind.TEXT),
                "seconds": ("Duration", Kind.DURATION),
                "process": ("Process", Kind.TEXT),
            },
            rows=rows[:_MOST_ROWS],
            empty="" if notes else "No locks are held.",
            notes=notes,
            local=False,
        )

    def _rows_of(self, seen: survey.Seen, wall: float) -> list[dict[str, Any]]:
        facts = survey.facts(seen.name, seen.record, wall, hashed=seen.hashed)
        # A hash that the store keeps can be guessed, so it is masked as well.
        name = self._mask.lock_id(seen.name)
        rows = []
        holder = facts["holder"]
        if holder is not None:
            blocked = holder.get("waits_for")
            waiting = f", waiting for {self._mask.lock_id(blocked)}" if blocked else ""
            rows.append(
                {
                    "lock_id": name,
                    "state": f"holder{waiting}",
                    "request": self._mask.request(holder.get("request", "")),
                    "priority": holder.get("priority", ""),
                    "seconds": holder.get("held_seconds"),
                    "process": holder["process"],
                    "token": holder.get("token", ""),
                }
            )
        for number, waiter in enumerate(facts["waiters"], start=1):
            rows.append(
                {
                    "lock_id": name,
                    "state": f"waiter {number}" + (" (aged)" if waiter["aged"] else ""),
                    "request": self._mask.request(waiter["request"]),
                    "priority": waiter["priority"],
                    "seconds": waiter["waiting_seconds"],
                    "process": waiter["process"],
                }
            )
        return rows

    def contention(self) -> View:
        """Return the locks that requests waited for."""
        waits = self._tally.by_lock.copy().items()
        return _contention(
            "Contention by lock",
            "Locks that requests of this process waited for, the longest total wait first.",
            "Lock",
            {self._mask.lock_id(lock_id): each for lock_id, each in waits if each.waited},
        )

    def endpoints(self) -> View:
        """Return the endpoints that took locks."""
        waits = self._tally.by_endpoint.copy().items()
        return _contention(
            "Contention by endpoint",
            "Endpoints that took locks in this process, the longest total wait first.",
            "Endpoint",
            {endpoint or "(not in a request)": each for endpoint, each in waits},
        )

    def violations(self) -> View:
        """Return the put sites of writes that slipped past their lock."""
        return View(
            title="Violations",
            about="Put sites whose writes slipped past their lock. The app's settings decide "
            "whether such writes are refused, or only logged.",
            columns={
                "violation": ("Violation", Kind.TEXT),
                "kind": ("Kind", Kind.TEXT),
                "count": ("Count", Kind.COUNT),
                "put_at": ("Put at", Kind.CODE),
                "read_at": ("Read at", Kind.CODE),
                "since": ("First", Kind.MOMENT),
            },
            rows=[dataclasses.asdict(each) for each in violations()[:_MOST_ROWS]],
            empty="No violations so far.",
        )

    def outages(self) -> View:
        """Return the periods without the store, and counts of other events that should be rare."""
        return View(
            title="Outages",
            about="Periods in which the lock store did not answer this process. Writes were still "
            "fenced.",
            columns={
                "since": ("Start", Kind.MOMENT),
                "seconds": ("Duration", Kind.DURATION),
                "degraded": ("Degraded locks", Kind.COUNT),
                "refused": ("Refused locks", Kind.COUNT),
                "reason": ("Reason", Kind.TEXT),
            },
            rows=[
                {**dataclasses.asdict(each), "seconds": each.until - each.since}
                for each in reversed(self._tally.outages.copy())
            ],
            empty="No outages so far.",
            notes=[
                f"{name}: {count:,} since this process started."
                for name, count in sorted(self._tally.troubles.copy().items())
            ],
        )

    def heartbeats(self) -> View:
        """Return the state of the renewal thread."""
        renewals = self._service().renewals
        return View(
            title="Heartbeats",
            about="The thread of this process that renews leases, and sends pending releases when "
            "the store answers again.",
            columns={
                "process": ("Process", Kind.TEXT),
                "tasks": ("Tasks", Kind.COUNT),
                "thread": ("Thread", Kind.TEXT),
            },
            rows=[
                {
                    "process": process_label(),
                    "tasks": len(renewals),
                    "thread": "running" if renewals.running else "not started",
                }
            ],
            empty="",
        )


def _contention(title: str, about: str, heading: str, waits: Mapping[str, Waits]) -> View:
    ordered = sorted(waits.items(), key=lambda item: -item[1].waited_seconds)
    return View(
        title=title,
        about=about,
        columns={
            "name": (heading, Kind.CODE),
            "locks": ("Granted", Kind.COUNT),
            "waited": ("Waited", Kind.COUNT),
            "timed_out": ("Timed out", Kind.COUNT),
            "waited_seconds": ("Total wait", Kind.DURATION),
            "longest_seconds": ("Longest wait", Kind.DURATION),
        },
        rows=[{"name": name, **dataclasses.asdict(each)} for name, each in ordered[:_MOST_ROWS]],
        empty="No waits so far.",
    )
