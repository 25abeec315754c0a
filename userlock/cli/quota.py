"""Check an app's quota, and count again: `userlock quota check|recount`.

The arguments. `quota_work.py` has the actions, which load ndb.
"""

from __future__ import annotations

import argparse
import importlib

from userlock.cli.command import Invocation, Parser, add_action, add_app

NAME = "quota"
SUMMARY = "check the flags of a quota, and count again"
NO_MEANS = "the flags of some owners are wrong"
DETAILS = """\
The app's userlock.constraints.Quota is named by --app MODULE:ATTRIBUTE or the environment
variable USERLOCK_QUOTA, and is imported from the current directory. Its outbox needs client=.

Every action has --help. USERLOCK_SHOW_IDS=masked or hashed hides owners.
"""

_ACTIONS = "userlock.cli.quota_work"

_CHECK = """\
Looks at the owners whose job has not run, and at those with a change within --hours; with
OWNER at these alone. Exits with 1 if the flags of one are wrong, and no job staged in the
last five minutes will see to it. The JSON document has checked, wrong (owner, limit, counted,
differing, dirty_seconds), failed (owner, error) and interrupted.
"""
_RECOUNT = """\
Stages the job again for the owners that `check` reports, or for each OWNER. The jobs run in
the app. Ctrl-C or SIGTERM ends it after the current owner. The JSON document has checked,
stamped, failed (owner, error) and interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_app(parser, "quota", "USERLOCK_QUOTA")
    actions = parser.add_subparsers(
        title="actions", dest="action", metavar="ACTION", parser_class=Parser, required=True
    )
    _add(actions, "check", "report owners whose flags are wrong", _CHECK, NO_MEANS)
    _add(actions, "recount", "stage the job of owners again", _RECOUNT, "some have failed")


def run(options: argparse.Namespace, invocation: Invocation) -> int:
    actions = importlib.import_module(_ACTIONS)
    code: int = getattr(actions, options.action)(options, invocation)
    return code


def _add(
    actions: argparse._SubParsersAction[Parser], name: str, summary: str, details: str, no: str
) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary, details, no)
    add_app(parser, "quota", "USERLOCK_QUOTA")
    parser.add_argument("owners", metavar="OWNER", nargs="*", help="only these lock ids")
    parser.add_argument(
        "--hours",
        type=_hours,
        default=26.0,
        metavar="H",
        help="owners with a change within H hours (default: 26)",
    )
    return parser


def _hours(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours")
    return value
