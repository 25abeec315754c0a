"""Show and complete requests with an idempotency key: `userlock flows list|show|complete`.

The arguments. `flows_work.py` has the actions, which load ndb.
"""

from __future__ import annotations

import argparse
import importlib

from userlock.cli.command import Invocation, Parser, add_action, add_app, most, seconds

NAME = "flows"
SUMMARY = "show requests with an idempotency key, complete unfinished ones"
NO_MEANS = "there is no such request, or some are not complete"
DETAILS = """\
The app's userlock.idempotency.Flows are named by --app MODULE:ATTRIBUTE or the environment
variable USERLOCK_FLOWS, and are imported from the current directory. They need client=, and
take locks from --store if neither they nor the app has a service.

Every action has --help. USERLOCK_SHOW_IDS=masked or hashed hides users, keys and paths.
"""

_ACTIONS = "userlock.cli.flows_work"

_LIST = """\
Unfinished requests, the oldest first: running, or stuck. With --done the finished ones whose
answers are kept, the newest first. The JSON document has requests (as in show).
"""
_SHOW = """\
The JSON document has user, key, flow, request (method and path), state (running, stuck, done,
malformed), status (of the answer), attempts, begun, finished, expires, completable (by the
server) and points (what is done; "asked": a call that was perhaps made).
"""
_COMPLETE = """\
Runs the rest of unfinished requests, as if they were sent again: of functions and completable
views. Others are left to their clients. Exits with 1 if any has failed again. The JSON
document has requests (user, key, flow, status), completed, failed and interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_app(parser, "flows", "USERLOCK_FLOWS")
    actions = parser.add_subparsers(
        title="actions", dest="action", metavar="ACTION", parser_class=Parser, required=True
    )

    listing = _add(actions, "list", "list requests", _LIST, "")
    listing.add_argument("--done", action="store_true", help="finished requests instead")
    listing.add_argument("--user", metavar="ID", default="", help="only requests of that user")
    listing.add_argument(
        "--most", type=most, default=100, metavar="N", help="at most N requests (default: 100)"
    )

    show = _add(actions, "show", "show one request", _SHOW, "there is no such request")
    show.add_argument("key", metavar="KEY", help="the idempotency key")
    show.add_argument("--user", metavar="ID", required=True, help="its user")

    complete = _add(
        actions,
        "complete",
        "run the rest of unfinished requests",
        _COMPLETE,
        "some have failed again",
    )
    complete.add_argument("key", metavar="KEY", nargs="?", help="the idempotency key of one")
    complete.add_argument("--user", metavar="ID", default="", help="its user")
    complete.add_argument(
        "--older-than",
        type=seconds,
        default=300.0,
        metavar="S",
        help="only those begun at least S s ago: younger ones may still run (default: 300)",
    )


def run(options: argparse.Namespace, invocation: Invocation) -> int:
    actions = importlib.import_module(_ACTIONS)
    code: int = getattr(actions, options.action.replace("list", "list_"))(options, invocation)
    return code


def _add(
    actions: argparse._SubParsersAction[Parser], name: str, summary: str, details: str, no: str
) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary, details, no)
    add_app(parser, "flows", "USERLOCK_FLOWS")
    return parser
