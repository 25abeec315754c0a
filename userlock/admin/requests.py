"""Show and complete requests with an idempotency key: `userlock flows list|show|complete`, `reap`.

The facts are those of the inspector too. All texts from rows are escaped and bounded here; outputs,
parameters and answers are not shown. If lock ids are hidden (`userlock.configure(show_ids=…)`), so
are users, keys and paths.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.cloud import ndb

import userlock.ids as ids
from userlock.admin import command as cli
from userlock.admin.app import AppObject, heard, stoppable
from userlock.admin.command import CommandError, Invocation, usable_lock_id
from userlock.admin.rendering import (
    NAMESPACE,
    Column,
    Facts,
    Moment,
    Write,
    fields,
    labelled,
    local,
    table,
)
from userlock.errors import LockServiceUnavailable
from userlock.events import RequestServed
from userlock.idempotency import Flows, Request
from userlock.idempotency import rows as stored
from userlock.idempotency.answers import is_kept
from userlock.idempotency.flows import service_of
from userlock.idempotency.user_lock import call_lock_id
from userlock.lock.service import LockService
from userlock.ndb import owners
from userlock.ndb.owners import in_namespace, namespaces
from userlock.words import counted, legible, owner_in, span

#: How much is shown of a name, and in a row of a table, in characters.
_SHOWN_NAME, _SHOWN_IN_ROW = 300, 60
_MOST_POINTS = 100
#: Few rows are read at once: each may have a megabyte.
_BATCH = 10
_FRESH = {"use_cache": False, "use_global_cache": False}

_COMMON = (
    Column("for", "For", "duration"),
    Column("attempts", "Tries", "count"),
    NAMESPACE,
    Column("user", "User", "code"),
    Column("flow", "Flow", "code", 60),
)
_REQUEST = Column("request", "Request", "code")
#: The columns of a list, which names requests by their keys; and of pages, which do not.
COLUMNS = (Column("state", "State"), *_COMMON, Column("key", "Key", "code"))
_LAST = (Column("points", "Points"), Column("by", "Completed by"))
UNFINISHED = (Column("state", "State"), *_COMMON, _REQUEST, *_LAST)
FINISHED = (Column("status", "Status", "count"), *_COMMON, _REQUEST, Column("kept", "Kept"))
_LABELS = (
    *("flow", "user", "namespace", "key", "request", "state", "attempts", "points", "row"),
    *("begun", "completed by", "answer", "finished", "kept"),
)


class Found(NamedTuple):
    """A request, without parameters, outputs and answer. Times: seconds since 1970; 0: none."""

    user: str
    key: str
    flow: str
    method: str = ""
    path: str = ""
    status: int | None = None  # of the answer, if there is one
    attempts: int = 0
    begun_at: float = 0.0
    claimed_until: float = 0.0  # of an attempt that may be running
    finished_at: float = 0.0
    expires_at: float = 0.0
    claimed_locked: bool = False  # whether the attempt has its lock
    lock_id: str = ""  # the user's, or that of a call of another service
    completable: bool = False  # whether its parameters are stored
    points: tuple[str, ...] = ()  # what is done, in its order, with the calls perhaps made
    stamp: str = ""  # names this attempt or its answer; only a reader of the row knows it
    malformed: bool = False  # then little else is known
    namespace: str = ""


def listed(most: int = 100, user: str = "", *, done: bool) -> list[Found]:
    """Return finished requests, the newest first; or unfinished ones, the oldest first."""
    keys = [] if user else _keys(most, done=done)
    for namespace in namespaces() if user else ():
        with in_namespace(namespace):
            keys += stored.keys_of_owner(user)
    found = _found(keys, done=done)
    return sorted(found, key=lambda each: -each.finished_at if done else each.begun_at)[:most]


def read(user: str, key: str, namespace: str) -> Found | None:
    with in_namespace(namespace):
        row = stored.request_key(user, key).get(**_FRESH)
    return None if row is None else found_of(row)


def to_complete(found: Found, flows: Flows) -> Request | None:
    """Return a request that the server can complete; None if it cannot."""
    with in_namespace(found.namespace):
        return flows.find(found.user, found.key)


def _keys(most: int, *, done: bool) -> list[Any]:
    """Return the keys of the newest finished requests, or of the oldest unfinished ones."""
    pick = heapq.nlargest if done else heapq.nsmallest
    queries = [
        stored.query(namespace, standing, shard, descending=done)
        for namespace in namespaces()
        for standing in ([stored.DONE] if done else [stored.OPEN, stored.LEFT])
        for shard in range(owners.SHARDS)
    ]
    futures = [each.fetch_async(most, projection=["standing"]) for each in queries]
    ndb.wait_all(futures)
    rows = [(row.standing.rpartition("|")[2], row.key) for each in futures for row in each.result()]
    return [key for _, key in pick(most, rows, key=lambda each: (each[0], str(each[1])))]


def _found(keys: list[Any], *, done: bool) -> Iterator[Found]:
    for start in range(0, len(keys), _BATCH):
        for row in ndb.get_multi(keys[start : start + _BATCH], **_FRESH):
            found = None if row is None else found_of(row)
            if found is not None and (found.malformed or (found.status is not None) == done):
                yield found


def found_of(row: Any) -> Found:
    """Return the request of a row, whatever another writer has left in it."""
    namespace = row.key.namespace() or ""
    try:
        with owners.in_namespace_of(row.key):
            own_key = stored.request_key(row.user, row.idempotency_key)
        if row.key != own_key:
            raise ValueError("it is under the key of another request")
        stamp = [row.user, row.idempotency_key, row.begun_at, row.attempts, row.token, row.status]
        return Found(
            user=row.user,
            key=row.idempotency_key,
            flow=str(row.flow),
            method=str(row.method or ""),
            path=str(row.path or ""),
            status=None if row.status is None else int(row.status),
            attempts=int(row.attempts or 0),
            begun_at=int(row.begun_at or 0) / 1e6,
            claimed_until=int(row.claimed_until or 0) / 1e6 if row.token else 0.0,
            finished_at=int(row.finished_at or 0) / 1e6,
            expires_at=0.0 if row.expire_at is None else owners.micros_of(row.expire_at) / 1e6,
            claimed_locked=bool(row.claimed_locked),
            lock_id=call_lock_id(row.key) if row.calling else row.user,
            completable=row.params is not None,
            points=_points(row.points),
            stamp=hashlib.sha256(json.dumps(stamp).encode()).hexdigest(),
            namespace=namespace,
        )
    except Exception:  # from ndb's own decoders as well
        user, key = owners.owner_of(row.key.root()) or "?", str(row.key.id()).removeprefix("=")
        return Found(user, key, "?", malformed=True, namespace=namespace)


def _points(encoded: str) -> tuple[str, ...]:
    try:
        documents = stored.points_in(encoded)
        names = [
            str(each["name"]) if "out" in each else f"{each['name']} (asked)"
            for each in documents[:_MOST_POINTS]
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return ("?",)
    more = len(documents) - len(names)
    return (*names, f"{more:,} more") if more else tuple(names)


class Shown:
    """Shows requests at one moment. It asks the store once for each user's lock, if there is one.

    `note`: why the store did not answer. It is not asked again, and no other lock counts as held.
    """

    def __init__(self, flows: Flows, service: LockService | None, wall: float) -> None:
        self._flows = flows
        self._service = service
        self._wall = wall
        self._held: dict[str, bool] = {}
        self.note = ""

    def _is_held(self, lock_id: str) -> bool:
        if lock_id not in self._held and self._service is not None and not self.note:
            self._held[lock_id] = False
            try:
                self._held[lock_id] = self._service.holder(lock_id) is not None
            except LockServiceUnavailable as error:
                self.note = error.reason
            except ValueError:
                pass  # no lock id
        return self._held.get(lock_id, False)

    def state(self, found: Found) -> str:
        # An attempt of more than a minute is running if it has its lock and the lock is held.
        if found.malformed:
            return "malformed"
        if found.status is not None:
            return "done"
        if found.claimed_until > self._wall:
            return "running"
        return "running" if found.claimed_locked and self._is_held(found.lock_id) else "stuck"

    def facts(self, found: Found) -> Facts:
        method = legible(found.method, 20)
        path = f" {legible(found.path, _SHOWN_NAME)}" if method and ids.are_plain() else ""
        return {
            "namespace": found.namespace,
            "user": ids.show(found.user),
            "key": ids.show(found.key),
            "flow": legible(found.flow, _SHOWN_NAME),
            "request": method + path,
            "state": self.state(found),
            "status": found.status,
            "attempts": found.attempts,
            "begun": Moment(found.begun_at) if found.begun_at else None,
            "finished": Moment(found.finished_at) if found.finished_at else None,
            "expires": Moment(found.expires_at) if found.expires_at else None,
            "completable": found.completable,
            "points": [legible(each, _SHOWN_NAME) for each in found.points],
        }

    def row(self, found: Found) -> Facts:
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

    def details(self, found: Found, write: Write) -> dict[str, str]:
        facts = self.facts(found)
        facts["request"] = facts["request"] or "a call of a function"
        facts["points"] = facts["points"] or "none"
        if found.malformed:
            facts.update(begun=None, row="it is malformed: another writer has changed it")
        elif found.status is None:
            facts["completed_by"] = self._completed_by(found)[1]
        else:
            facts["answer"] = f"{found.status}"
            facts["kept"] = f"until {write(found.expires_at)}" if found.expires_at else None
        return labelled(facts, _LABELS, write)

    def _completed_by(self, found: Found) -> tuple[str, str]:
        """Return who can complete a request: in a list, and in a sentence."""
        if not found.completable:
            return "client", "its client alone"
        if self._flows.is_registered(found.flow):
            return "server", "the server or its client"
        return "another process", "a process that has its function, or its client"


_OLDER = "only those begun at least S s ago: younger ones may still run (default: 300)"
_APP = AppObject("flows", "userlock.idempotency.Flows", Flows, Flows.context)


def _named(options: argparse.Namespace) -> Found:
    """Return the request that is named, in the only namespace that has one."""
    user = usable_lock_id(options.user)
    places = namespaces() if options.namespace is None else [options.namespace]
    found = [each for place in places if (each := read(user, options.key, place)) is not None]
    if not found:
        why = "there is no such request: its answer is no longer kept, or it never was"
        raise CommandError(why, cli.NO)
    if len(found) > 1:
        several = ", ".join(each.namespace or "the default one ('')" for each in found)
        raise CommandError(f"{several} have such a request. To fix it: pass --namespace NAME")
    return found[0]


@cli.command(
    cli.flag("--done", "finished requests instead"),
    cli.option("--user", "ID", "only requests of that user"),
    cli.most("requests"),
)
def list_(options: argparse.Namespace, invocation: Invocation, flows: Flows) -> int:
    """List requests.

    Unfinished requests, the oldest first: running, or stuck. With --done the finished ones whose
    answers are kept, the newest first. The JSON document has requests (as in show).
    """
    user = usable_lock_id(options.user) if options.user else ""
    found = listed(options.most, user, done=options.done)
    shown = Shown(flows, service_of(flows), invocation.console.clock.wall())
    document = {"requests": [shown.facts(each) for each in found]}
    rows = [shown.row(each) for each in found]
    return invocation.answer(document, *(table(COLUMNS, rows) if rows else ["no requests"]))


@cli.command(
    cli.argument("key", metavar="KEY", help="the idempotency key"),
    cli.argument("--user", metavar="ID", required=True, help="its user"),
    cli.of_namespace("its namespace, if several have such a request"),
    no="there is no such request",
)
def show(options: argparse.Namespace, invocation: Invocation, flows: Flows) -> int:
    """Show one request.

    The JSON document has namespace, user, key, flow, request (method and path), state
    (running, stuck, done, malformed), status (of the answer), attempts, begun, finished,
    expires, completable (by the server) and points (what is done; "asked": a call that was
    perhaps made).
    """
    wall = invocation.console.clock.wall()
    found = _named(options)
    shown = Shown(flows, service_of(flows), wall)
    details = shown.details(found, local(wall))
    return invocation.answer(shown.facts(found), details.pop("flow"), *fields(details))


@cli.command(
    cli.argument("key", metavar="KEY", nargs="?", help="the idempotency key of one"),
    cli.option("--user", "ID", "its user"),
    cli.of_namespace("only that namespace"),
    cli.option("--older-than", "S", _OLDER, cli.seconds),
    no="some have failed again",
)
def complete(options: argparse.Namespace, invocation: Invocation, flows: Flows) -> int:
    """Run the rest of unfinished requests.

    Runs them as if they were sent again: those of functions and completable views. Others are
    left to their clients. Exits with 1 if any has failed again. The JSON document has requests
    (namespace, user, key, flow, status, error), completed, failed and interrupted.
    """
    if bool(options.key) != bool(options.user):
        raise CommandError("a request is named by KEY and --user together, or by neither")
    if options.key and options.older_than is not None:
        raise CommandError("--older-than does not go with KEY")
    done: list[Facts] = []
    with stoppable() as stop, heard(RequestServed) as served:
        least = 300.0 if options.older_than is None else options.older_than
        meant = flows.unfinished(older_than=least)
        if options.namespace is not None:
            meant = (each for each in meant if each.namespace == options.namespace)
        if options.key:
            named = to_complete(_named(options), flows)
            if named is None:
                why = "there is no such request that the server can complete. To fix it: look with "
                raise CommandError(f"{why}`userlock flows show`", cli.NO)
            meant = iter([named])
        for request in itertools.takewhile(lambda _: not stop(), meant):
            answer = flows.complete_one(request)
            kept = answer is not None and is_kept(answer.status)
            facts = {
                "namespace": request.namespace,
                "user": ids.show(request.user_id),
                "key": ids.show(request.key),
                "flow": legible(request.flow, _SHOWN_NAME),
                "status": None if answer is None else answer.status,
                "error": "" if kept else legible(served[-1].error, _SHOWN_NAME),
            }
            says = f"answered with {facts['status']}"
            says = f"not complete: {facts['error']}" if facts["error"] or answer is None else says
            user = owner_in(request.namespace, ids.show(request.user_id))
            invocation.progress(f"{facts['flow']} of {user}: {says}")
            done.append(facts)
    failed = sum(bool(each["error"]) for each in done)
    completed = len(done) - failed
    document = {"requests": done, "completed": completed, "failed": failed}
    text = f"{counted(completed, 'request')} completed"
    text += f", {failed:,} failed again" if failed else ""
    return invocation.answer({**document, "interrupted": stop()}, text, no=failed > 0)


@_APP.command
@cli.command()
def reap(options: argparse.Namespace, invocation: Invocation, flows: Flows) -> int:
    """Remove answers of requests that are no longer kept.

    The answers of requests with an idempotency key are kept for keep_hours. A request that is not
    finished is never removed. To be run each day, for instance; a TTL policy of Datastore on
    UserLockRequest.expire_at does the same. Ctrl-C or SIGTERM ends it after the current one. The
    JSON document has removed and interrupted.

    The app's userlock.idempotency.Flows are named as for `userlock flows`.
    """
    with stoppable() as stop:
        removed = flows.reap(stopped=stop)
    document = {"removed": removed, "interrupted": stop()}
    return invocation.answer(document, f"{counted(removed, 'answer')} removed")


flows = _APP.group(
    "flows",
    "Show requests with an idempotency key, complete unfinished ones.",
    "The flows need client=, and\ntake locks from --store if neither they nor the app "
    "has a service.",
    "there is no such request, or some are not complete",
    *(list_, show, complete),
)
