"""Show and complete requests with an idempotency key: `userlock flows list|show|complete`, `reap`.

`userlock reap` removes answers that are no longer kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from userlock.admin import requests as reading
from userlock.admin.rendering import fields, local, table
from userlock.cli.app import AppObject, Stop, heard
from userlock.cli.command import (
    NO,
    CommandError,
    Invocation,
    argument,
    command,
    group,
    most,
    seconds,
    usable_lock_id,
)
from userlock.events import RequestServed
from userlock.idempotency import Flows, Request
from userlock.idempotency.answers import is_kept
from userlock.idempotency.apps import VARIABLE, find_flows
from userlock.ids import show as show_id
from userlock.lock.configuration import defaults
from userlock.ndb.owners import in_namespace
from userlock.words import counted, legible

_SHOWN = 300
_NAMESPACE = argument(
    "--namespace", metavar="NAME", help="its namespace, if several have such a request"
)
_APP = AppObject("flows", VARIABLE, Flows, find_flows, Flows.context)


def _user(options: argparse.Namespace) -> str:
    return usable_lock_id(options.user) if options.user else ""


# --- show ---------------------------------------------------------------------------------------


@command(
    argument("--done", action="store_true", help="finished requests instead"),
    argument("--user", metavar="ID", default="", help="only requests of that user"),
    most("requests"),
)
def list_(options: argparse.Namespace, invocation: Invocation) -> int:
    """List requests.

    Unfinished requests, the oldest first: running, or stuck. With --done the finished ones whose
    answers are kept, the newest first. The JSON document has requests (as in show).
    """
    console, user = invocation.console, _user(options)
    with _APP.opened(options, invocation) as flows:
        found = reading.listed(options.most, user, done=options.done)
        shown = reading.Shown(flows, defaults.service, console.clock.wall())
        document = {"requests": [shown.facts(each) for each in found]}
        rows = [shown.row(each) for each in found]
    return invocation.answer(document, table(reading.COLUMNS, rows) if rows else ["no requests"])


@command(
    argument("key", metavar="KEY", help="the idempotency key"),
    argument("--user", metavar="ID", required=True, help="its user"),
    _NAMESPACE,
    no="there is no such request",
)
def show(options: argparse.Namespace, invocation: Invocation) -> int:
    """Show one request.

    The JSON document has namespace, user, key, flow, request (method and path), state
    (running, stuck, done, malformed), status (of the answer), attempts, begun, finished,
    expires, completable (by the server) and points (what is done; "asked": a call that was
    perhaps made).
    """
    user, wall = usable_lock_id(options.user), invocation.console.clock.wall()
    with _APP.opened(options, invocation) as flows:
        found = reading.read(user, options.key, options.namespace)
        if found is None:
            why = "there is no such request: its answer is no longer kept, or it never was"
            raise CommandError(why, NO)
        shown = reading.Shown(flows, defaults.service, wall)
        document = shown.facts(found)
        details = shown.details(found, local(wall))
    return invocation.answer(document, [details.pop("flow"), *fields(details)])


# --- work ---------------------------------------------------------------------------------------


@command(
    argument("key", metavar="KEY", nargs="?", help="the idempotency key of one"),
    argument("--user", metavar="ID", default="", help="its user"),
    _NAMESPACE,
    argument(
        "--older-than",
        type=seconds,
        default=300.0,
        metavar="S",
        help="only those begun at least S s ago: younger ones may still run (default: 300)",
    ),
    no="some have failed again",
)
def complete(options: argparse.Namespace, invocation: Invocation) -> int:
    """Run the rest of unfinished requests.

    Runs them as if they were sent again: those of functions and completable views. Others are
    left to their clients. Exits with 1 if any has failed again. The JSON document has requests
    (user, key, flow, status, error), completed, failed and interrupted.
    """
    if bool(options.key) != bool(options.user):
        raise CommandError("a request is named by KEY and --user together, or by neither")
    user = _user(options)
    done: list[dict[str, Any]] = []
    with (
        _APP.opened(options, invocation) as flows,
        Stop().listening() as stop,
        heard(RequestServed) as served,
    ):
        for request in _meant(
            flows, user, options.key, options.namespace, options.older_than, stop
        ):
            answer = flows.complete_one(request)
            error = ""
            if answer is None or not is_kept(answer.status):
                error = legible(served[-1].error, _SHOWN)
            facts = {
                "user": show_id(request.user_id),
                "key": show_id(request.key),
                "flow": legible(request.flow, _SHOWN),
                "status": None if answer is None else answer.status,
                "error": error,
            }
            failed = error or answer is None
            says = f"not complete: {error}" if failed else f"answered with {facts['status']}"
            invocation.progress(f"{facts['flow']} of {facts['user']}: {says}")
            done.append(facts)
    bad = sum(bool(each["error"]) for each in done)
    document = {
        "requests": done,
        "completed": len(done) - bad,
        "failed": bad,
        "interrupted": stop.requested,
    }
    rest = f", {bad:,} failed again" if bad else ""
    lines = [f"{counted(len(done) - bad, 'request')} completed{rest}"]
    return invocation.answer(document, lines, no=bad > 0, interrupted=stop.requested)


def _meant(
    flows: Flows,
    user: str,
    key: str | None,
    namespace: str | None,
    older_than: float,
    stopped: Callable[[], bool],
) -> Iterator[Request]:
    if key:
        found = reading.read(user, key, namespace)
        request = None
        if found is not None:
            with in_namespace(found.namespace):
                request = flows.find(user, key)
        if request is None:
            raise CommandError(
                "there is no such request that the server can complete. To fix it: look with "
                "`userlock flows show`",
                NO,
            )
        yield request
        return
    for request in flows.unfinished(older_than=older_than):
        if stopped():
            return
        yield request


@command(_APP.argument)
def reap(options: argparse.Namespace, invocation: Invocation) -> int:
    """Remove answers of requests that are no longer kept.

    The answers of requests with an idempotency key are kept for keep_hours. A request that is not
    finished is never removed. To be run each day, for instance; a TTL policy of Datastore on
    UserLockRequest.expire_at does the same. Ctrl-C or SIGTERM ends it after the current one. The
    JSON document has removed and interrupted.

    The app's userlock.idempotency.Flows are named as for `userlock flows`.
    """
    with _APP.opened(options, invocation) as flows, Stop().listening() as stop:
        removed = flows.reap(stopped=stop)
    document = {"removed": removed, "interrupted": stop.requested}
    lines = [f"{counted(removed, 'answer')} removed"]
    return invocation.answer(document, lines, interrupted=stop.requested)


flows = group(
    "flows",
    """\
Show requests with an idempotency key, complete unfinished ones.

The app's userlock.idempotency.Flows are named by --app MODULE:ATTRIBUTE or USERLOCK_FLOWS of the
environment, or are the only ones of the app in USERLOCK_APP, and are imported from the current
directory. They need client=, and
take locks from --store if neither they nor the app has a service.

Every action has --help. USERLOCK_SHOW_IDS=masked or hashed hides users, keys and paths.
""",
    "there is no such request, or some are not complete",
    _APP.argument,
    list_,
    show,
    complete,
)
