"""Compare entities with the claims of their unique values: `userlock unique check|repair`.

The arguments. `unique_work.py` has the actions, which load ndb.
"""

from __future__ import annotations

import argparse
import importlib

from userlock.cli.command import Invocation, Parser, add_action, add_app, seconds

NAME = "unique"
SUMMARY = "compare entities with the claims of their unique values, and repair those"
NO_MEANS = "some entities or claims are not as they should be"
DETAILS = """\
The app's ndb.Client, or a function that makes it, is named by --app MODULE:ATTRIBUTE or the
environment variable USERLOCK_CLIENT. Its module is imported from the current directory, and
has to import the models. A repair takes locks from --store if the app has no service.

Every action has --help. USERLOCK_SHOW_IDS=masked or hashed hides keys and values.
"""

_ACTIONS = "userlock.cli.unique_work"

_BOTH = """\
Problems: unclaimed (an entity has no claim of its value: older data, other programs),
duplicate (another entity has the value), outdated (an entity lists a value that it no longer
has), void (a claim without an entity that has the value), failed (see the error).
"""
_CHECK = f"""\
Changes nothing. Exits with 1 if there is a problem.

{_BOTH}
The JSON document has entities, rows, problems (what, key, constraint, value, holder, error,
repaired), complete and interrupted.
"""
_REPAIR = f"""\
Claims free values, and removes void claims. An entity is put again, with its hooks, under its
lock. Of entities with one value the first that is met gets the claim; the others are
reported: no entity is given another value. Ctrl-C or SIGTERM ends it after the current batch;
the same command goes on. Exits with 1 if problems are left.

{_BOTH}
The JSON document is that of check.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_app(parser, "client", "USERLOCK_CLIENT")
    actions = parser.add_subparsers(
        title="actions", dest="action", metavar="ACTION", parser_class=Parser, required=True
    )
    _add(actions, "check", "report what is wrong", _CHECK, "there is a problem")
    repair = _add(actions, "repair", "repair what can be repaired", _REPAIR, "problems are left")
    repair.add_argument(
        "--wait",
        type=seconds,
        default=5.0,
        metavar="S",
        help="wait at most S s for the lock of an entity (default: 5)",
    )


def run(options: argparse.Namespace, invocation: Invocation) -> int:
    actions = importlib.import_module(_ACTIONS)
    code: int = actions.audit(options, invocation, repair=options.action == "repair")
    return code


def _add(
    actions: argparse._SubParsersAction[Parser], name: str, summary: str, details: str, no: str
) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary, details, no)
    add_app(parser, "client", "USERLOCK_CLIENT")
    parser.add_argument(
        "kinds", metavar="KIND", nargs="*", help="only these kinds (default: all with constraints)"
    )
    parser.add_argument(
        "--namespace", metavar="NAME", default="", help="the namespace (default: the default one)"
    )
    return parser
