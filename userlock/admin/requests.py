"""Read requests with an idempotency key for operators: lists, one request, documents.

Under `userlock flows` and the inspector. All texts that come from rows are escaped and
bounded here; outputs, parameters and answers are not shown. If lock ids are hidden
(`userlock.configure(show_ids=…)`), so are users, keys and paths.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.cloud import ndb

import userlock.ids as ids
from userlock.admin.tables import Column, timestamp
from userlock.errors import LockServiceUnavailable
from userlock.idempotency.flows import Flows
from userlock.idempotency.rows import (
    DONE,
    LEFT,
    OPEN,
    keys_of_owner,
    newest,
    oldest,
    points_in,
    request_key,
)
from userlock.idempotency.user_lock import call_lock_id
from userlock.lock.service import LockService
from userlock.ndb.owners import (
    SHARDS,
    in_namespace,
    in_namespace_of,
    micros_of,
    namespaces,
    owner_of,
)
from userlock.words import legible, span

_SHOWN_NAME = 300
_MOST_POINTS = 100
#: Few rows are read at once: each may have a megabyte.
_BATCH = 10
_MOST_COUNTED = 10_000
#: In a row of a table.
_SHOWN_IN_ROW = 60

_COMMON = (
    Column("for", "For", "duration"),
    Column("attempts", "Tries", "count"),
    Column("user", "User", "code"),
    Column("flow", "Flow", "code", 60),
)
_REQUEST = Column("request", "Request", "code")
#: The columns of a list, which names requests by their keys; and of pages, which do not.
COLUMNS = (Column("state", "State"), *_COMMON, Column("key", "Key", "code"))
UNFINISHED = (
    Column("state", "State"),
    *_COMMON,
    _REQUEST,
    Column("points", "Points"),
    Column("by", "Completed by"),
)
FINISHED = (Column("status", "Status", "count"), *_COMMON, _REQUEST, Column("kept", "Kept"))


class Found(NamedTuple):
    """A request, without parameters, outputs and answer. Times are in seconds since 1970.

    Attributes:
        user, key: its user and idempotency key.
        flow: the name of its function.
        method, path: of an HTTP request.
        status: of the answer; None if there is none yet.
        attempts: how many have begun.
        token: whether an attempt may be running.
        begun_at, claimed_until, finished_at, expires_at: see `RequestRow`; 0 for none.
        claimed_locked: whether that attempt has the lock of that id.
        lock_id: the user's, or that of a call of another service.
        completable: whether its parameters are stored.
        points: what is done, in its order: names, with the calls that were perhaps made.
        stamp: of this attempt, or of the answer. It is known to those alone who have read the row.
        malformed: whether its row is; then little else is known.
        namespace: of its row.
    """

    user: str
    key: str
    flow: str
    method: str = ""
    path: str = ""
    status: int | None = None
    attempts: int = 0
    token: bool = False
    begun_at: float = 0.0
    claimed_until: float = 0.0
    finished_at: float = 0.0
    expires_at: float = 0.0
    claimed_locked: bool = False
    lock_id: str = ""
    completable: bool = False
    points: tuple[str, ...] = ()
    stamp: str = ""
    malformed: bool = False
    namespace: str = ""


class Counts(NamedTuple):
    """The numbers of requests, each up to 10,000."""

    unfinished: int
    finished: int

    @property
    def note(self) -> str:
        """Return what is not counted, in words; empty if all is."""
        return f"{_MOST_COUNTED:,} stands for more" if max(self) >= _MOST_COUNTED else ""


def count() -> Counts:
    """Count the requests. In an ndb context.

    Raises:
        DATASTORE_ERRORS: Datastore does not answer.
    """
    unfinished = _counts(OPEN) + _counts(LEFT)
    finished = _counts(DONE)
    ndb.wait_all([*unfinished, *finished])
    return Counts(
        min(sum(each.get_result() for each in unfinished), _MOST_COUNTED),
        min(sum(each.get_result() for each in finished), _MOST_COUNTED),
    )


def _counts(standing: str) -> list[Any]:
    return [
        oldest(namespace, standing, shard).count_async(_MOST_COUNTED)
        for namespace in namespaces()
        for shard in range(SHARDS)
    ]


def unfinished(most: int = 100, user: str = "") -> list[Found]:
    """Return unfinished requests, the oldest first. In an ndb context.

    Raises:
        DATASTORE_ERRORS: Datastore does not answer.
    """
    keys = _keys_of(user) if user else _keys([OPEN, LEFT], most)
    return sorted(_found(keys, most, finished=False), key=lambda each: each.begun_at)


def finished(most: int = 100, user: str = "") -> list[Found]:
    """Return finished requests, the newest first. In an ndb context.

    Raises:
        DATASTORE_ERRORS: Datastore does not answer.
    """
    keys = _keys_of(user) if user else _keys([DONE], most)
    return sorted(_found(keys, most, finished=True), key=lambda each: -each.finished_at)


def read(user: str, key: str, namespace: str | None = None) -> Found | None:
    """Return a request, or None if there is none. In an ndb context.

    Without a namespace, the first that is found in any of them.

    Raises:
        DATASTORE_ERRORS: Datastore does not answer.
    """
    for each in namespaces() if namespace is None else [namespace]:
        with in_namespace(each):
            row = request_key(user, key).get(use_cache=False, use_global_cache=False)
        if row is not None:
            return found_of(row)
    return None


def _keys_of(user: str) -> list[Any]:
    """Return the keys of a user's requests, in all namespaces."""
    found: list[Any] = []
    for namespace in namespaces():
        with in_namespace(namespace):
            found += keys_of_owner(user)
    return found


def _keys(standings: list[str], most: int) -> list[Any]:
    """Return the keys of requests: the oldest unfinished ones, the newest finished ones."""
    query, pick = (newest, heapq.nlargest) if DONE in standings else (oldest, heapq.nsmallest)
    futures = [
        query(namespace, standing, shard).fetch_async(most, projection=["standing"])
        for namespace in namespaces()
        for standing in standings
        for shard in range(SHARDS)
    ]
    ndb.wait_all(futures)
    rows = [
        (row.standing.rpartition("|")[2], row.key) for each in futures for row in each.get_result()
    ]
    return [key for _, key in pick(most, rows, key=lambda each: (each[0], str(each[1])))]


def _found(keys: list[Any], most: int, *, finished: bool) -> Iterator[Found]:
    left = most
    for start in range(0, len(keys), _BATCH):
        rows = ndb.get_multi(keys[start : start + _BATCH], use_cache=False, use_global_cache=False)
        for row in rows:
            found = None if row is None or not left else found_of(row)
            if found is not None and (found.malformed or (found.status is not None) == finished):
                left -= 1
                yield found


def found_of(row: Any) -> Found:
    """Return the request of a row, whatever another writer has left in it."""
    try:
        return _found_of(row)
    except Exception:  # from ndb's own decoders as well
        user, key = owner_of(row.key.root()) or "?", str(row.key.id()).removeprefix("=")
        return Found(user, key, "?", malformed=True, namespace=row.key.namespace() or "")


def _found_of(row: Any) -> Found:
    with in_namespace_of(row.key):
        own_key = request_key(row.user, row.idempotency_key)
    if row.key != own_key:
        raise ValueError("it is under the key of another request")
    return Found(
        user=row.user,
        key=row.idempotency_key,
        flow=str(row.flow),
        method=str(row.method or ""),
        path=str(row.path or ""),
        status=None if row.status is None else int(row.status),
        attempts=int(row.attempts or 0),
        token=bool(row.token),
        begun_at=_seconds(row.begun_at),
        claimed_until=_seconds(row.claimed_until),
        finished_at=_seconds(row.finished_at),
        expires_at=0.0 if row.expire_at is None else micros_of(row.expire_at) / 1e6,
        claimed_locked=bool(row.claimed_locked),
        lock_id=call_lock_id(row.key) if row.calling else row.user,
        completable=row.params is not None,
        points=_points(row.points),
        stamp=_stamp(row),
        namespace=row.key.namespace() or "",
    )


def _seconds(micros: Any) -> float:
    return int(micros or 0) / 1e6


def _stamp(row: Any) -> str:
    parts = [row.user, row.idempotency_key, row.begun_at, row.attempts, row.token, row.status]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _points(encoded: str) -> tuple[str, ...]:
    try:
        documents = points_in(encoded)
        names = [
            f"{each['name']} (asked)" if each.get("asked") else str(each["name"])
            for each in documents[:_MOST_POINTS]
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return ("?",)
    more = len(documents) - len(names)
    return (*names, f"{more:,} more") if more else tuple(names)


class Shown:
    """Shows requests at one moment. It asks the store once for each user's lock.

    Args:
        flows: the app's flows.
        service: the source of locks; None: nothing is known to be held.
        wall: the time, in seconds since 1970.

    Attributes:
        note: the reason why the store did not answer. It is not asked again; no other lock
            counts as held.
    """

    def __init__(self, flows: Flows, service: LockService | None, wall: float) -> None:
        self._flows = flows
        self._service = service
        self._wall = wall
        self._held: dict[str, bool] = {}
        self.note = ""

    def _is_held(self, lock_id: str) -> bool:
        if lock_id not in self._held:
            self._held[lock_id] = self._ask(lock_id)
        return self._held[lock_id]

    def _ask(self, lock_id: str) -> bool:
        if self._service is None or self.note:
            return False
        try:
            return self._service.holder(lock_id) is not None
        except LockServiceUnavailable as error:
            self.note = error.reason
        except ValueError:
            pass  # no lock id
        return False

    def state(self, found: Found) -> str:
        """Return the state of a request in one word: `running`, `stuck`, `done` or `malformed`.

        An attempt of more than a minute is running if it has its lock and the lock is held.
        """
        if found.malformed:
            return "malformed"
        if found.status is not None:
            return "done"
        if found.token and found.claimed_until > self._wall:
            return "running"
        return "running" if found.claimed_locked and self._is_held(found.lock_id) else "stuck"

    def facts(self, found: Found) -> dict[str, Any]:
        """Return a request as a document."""
        return {
            "namespace": found.namespace,
            "user": ids.show(found.user),
            "key": ids.show(found.key),
            "flow": legible(found.flow, _SHOWN_NAME),
            "request": request_of(found),
            "state": self.state(found),
            "status": found.status,
            "attempts": found.attempts,
            "begun": timestamp(found.begun_at),
            "finished": timestamp(found.finished_at) if found.finished_at else None,
            "expires": timestamp(found.expires_at) if found.expires_at else None,
            "completable": found.completable,
            "points": [legible(each, _SHOWN_NAME) for each in found.points],
        }

    def row(self, found: Found) -> dict[str, Any]:
        """Return a request as a row of any of the tables."""
        facts = self.facts(found)
        since, left = found.finished_at or found.begun_at, found.expires_at - self._wall
        return {
            **facts,
            "for": self._wall - since if since else "?",
            "kept": f"for {span(left)}" if left > 0 else "no longer",
            "request": legible(facts["request"], _SHOWN_IN_ROW),
            "points": legible(", ".join(facts["points"]), _SHOWN_IN_ROW),
            "by": "" if found.malformed else self._completed_by(found)[0],
        }

    def details(self, found: Found, moment: Callable[[float], str]) -> dict[str, str]:
        """Return all about a request, by labels, in words."""
        facts = self.facts(found)
        shown = {
            "flow": facts["flow"],
            "user": facts["user"],
            **({"namespace": found.namespace} if found.namespace else {}),
            "key": facts["key"],
            "request": facts["request"] or "a call of a function",
            "state": facts["state"],
            "attempts": f"{found.attempts:,}",
            "points": ", ".join(facts["points"]) or "none",
        }
        if found.malformed:
            return {**shown, "row": "it is malformed: another writer has changed it"}
        shown["begun"] = moment(found.begun_at)
        if found.status is None:
            return {**shown, "completed by": self._completed_by(found)[1]}
        shown["answer"] = f"{found.status}"
        if found.finished_at:
            shown["finished"] = moment(found.finished_at)
        if found.expires_at:
            shown["kept"] = f"until {moment(found.expires_at)}"
        return shown

    def _completed_by(self, found: Found) -> tuple[str, str]:
        """Return the one who can complete a request: in a list, and in a sentence."""
        if not found.completable:
            return "client", "its client alone"
        if self._flows.is_registered(found.flow):
            return "server", "the server or its client"
        return "another process", "a process that has its function, or its client"


def request_of(found: Found) -> str:
    """Return method and path; if lock ids are hidden, the method."""
    if not found.method:
        return ""
    method = legible(found.method, 20)
    return f"{method} {legible(found.path, _SHOWN_NAME)}" if ids.are_plain() else method
