"""Gather the facts of each view of the inspector. The templates have its words."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Iterable
from typing import Any

import flask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

from userlock.admin import snapshot
from userlock.contrib.inspector.tally import Tally, Waits
from userlock.lock.lease import process_label
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.reports import violations
from userlock.words import counted

#: The most rows of a table. A note gives the number of the others.
_MOST_ROWS = 200
#: The most locks that are read one by one, if the store lists none.
_MOST_ASKED = 50

#: The facts about a lock, an endpoint, a put site, an outage or a thread.
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """A table.

    Attributes:
        rows: the facts.
        notes: what is missing, and other remarks.
        local: whether the facts are about this process only.
    """

    rows: list[Row]
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
            sample = snapshot.take(service, [], service.clock.wall())
        except StoreUnavailable as trouble:
            notes.append(f"The lock store does not answer: {trouble.reason}.")
        else:
            if sample.note:
                notes.append(f"Not complete: {sample.note}.")
                if not sample.locks:
                    # At least the locks that this process has waited for.
                    known = list(self._tally.by_lock.copy())[-_MOST_ASKED:]
                    sample = snapshot.take(service, known, sample.wall) if known else sample
            for seen in sample.select(everything=True):
                rows += self._rows_of(seen, sample.wall)
        if len(rows) > _MOST_ROWS:
            notes.append(f"{counted(len(rows) - _MOST_ROWS, 'more row')} not shown.")
        return View(rows[:_MOST_ROWS], notes, local=False)

    def _rows_of(self, seen: snapshot.LockState, wall: float) -> list[Row]:
        facts = snapshot.facts(seen.name, seen.record, wall, hashed=seen.hashed)
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
        """Return the locks that requests of this process waited for."""
        return _contention(
            (self._mask.lock_id(lock_id), waits)
            for lock_id, waits in self._tally.by_lock.copy().items()
            if waits.waited or waits.rejected
        )

    def endpoints(self) -> View:
        """Return the endpoints that took locks."""
        return _contention(self._tally.by_endpoint.copy().items())

    def violations(self) -> View:
        """Return the put sites whose writes slipped past their lock."""
        return View([dataclasses.asdict(site) for site in violations()[:_MOST_ROWS]])

    def outages(self) -> View:
        """Return the periods without the store, and counts of other events that should be rare."""
        return View(
            [
                {**dataclasses.asdict(each), "seconds": each.until - each.since}
                for each in reversed(self._tally.outages.copy())
            ],
            [
                f"{name}: {count:,} since this process started."
                for name, count in sorted(self._tally.troubles.copy().items())
            ],
        )

    def heartbeats(self) -> View:
        """Return the state of the renewal thread."""
        renewals = self._service().renewals
        thread = "running" if renewals.running else "not started"
        return View([{"process": process_label(), "tasks": len(renewals), "thread": thread}])


def _contention(waits: Iterable[tuple[str, Waits]]) -> View:
    """Return the longest total waits, by names."""
    ordered = sorted(waits, key=lambda item: -item[1].waited_seconds)[:_MOST_ROWS]
    return View(
        [
            {"name": name or "(not in a request)", **dataclasses.asdict(each)}
            for name, each in ordered
        ]
    )
