"""Show and repair an app's outbox: `userlock outbox status|list|show|relay|run|redrive|purge`.

The arguments. `app.py` finds the outbox, `outbox_reading.py` and
`outbox_work.py` have the actions; they load ndb.
"""

from __future__ import annotations

import argparse
import importlib

from userlock.cli.command import Invocation, Parser, add_action, add_app, most, seconds

NAME = "outbox"
SUMMARY = "show jobs of the outbox, relay and run them, redrive and purge dead ones"
NO_MEANS = "jobs are late or left, nothing was run, redriven or purged"
DETAILS = """\
The app's userlock.outbox.Outbox is named by --app MODULE:ATTRIBUTE or the environment
variable USERLOCK_OUTBOX, and is imported from the current directory. An outbox without
service=, in an app that calls no userlock.configure(service=…), takes locks from --store.

Every action has --help. USERLOCK_SHOW_IDS=masked or hashed hides owners, the first
argument of calls, and keys: name a job then by its part of the key, and --owner ID.
"""

_READING = "userlock.cli.outbox_reading"
_WORK = "userlock.cli.outbox_work"

_STATUS = """\
Waiting jobs are due, or have a later time; blocked ones wait behind a dead job of their
owner. The lag is that of the job that has been due for the longest time. Exits with 1 if
it is above --late. The JSON document has at, due, later, running, blocked, dead,
lag_seconds, oldest (as in show), causes (cause, dead, blocking), complete and notes.
"""
_LIST = """\
Jobs that run come first, then waiting ones by their time; dead ones are sorted by cause,
those of one owner by their order. The JSON document has jobs (as in show), complete and
note.
"""
_SHOW = """\
The JSON document has key, name (the part of the key without the owner), owner, job, call,
state (due, later, running, dead), tier, attempts, redriven, staged, ready, late_seconds,
cause, died, blocks (dead, it holds up its owner's later jobs), first_error and last_error
(text, at) and why (it does not run).
"""
_RELAY = """\
Asks the engine again for jobs that are due and still there. Runs until Ctrl-C or SIGTERM,
and then exits with 0. Any number of relays may run. The JSON document has woken, refused
and shards (--once), or stopped.
"""
_RUN = """\
Runs that job here and now, after its owner's earlier ones, and some of the later ones.
Exits with 0 if that job is done. The JSON document has outcome (ran, nothing, busy), done, jobs
(job, outcome, attempt, seconds, error) and why (the job is still there).
"""
_REDRIVE = """\
Lets dead jobs run again, with all their attempts, each under its owner's lock. They go in
batches of up to 25. Ctrl-C or SIGTERM ends it after the current batch; the same command
goes on with those that are left. Busy owners are tried once more at the end. Exits with 1
if any are left. The JSON document has redriven, skipped, left and interrupted.
"""
_PURGE = """\
Deletes dead jobs for good: those that were dead when they were counted, and no others.
Jobs that they held up go on. Asks twice on a terminal; otherwise it needs --yes with their
number. The JSON document has purged, left, interrupted and why (nothing was purged).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_app(parser, "outbox", "USERLOCK_OUTBOX")
    actions = parser.add_subparsers(
        title="actions", dest="action", metavar="ACTION", parser_class=Parser, required=True
    )

    status = _add(actions, "status", "show how many jobs wait, run and are dead", _STATUS, _READING)
    status.add_argument(
        "--late", type=seconds, metavar="S", help="exit with 1 if a job is late by more than S s"
    )

    listing = _add(actions, "list", "list jobs", _LIST, _READING)
    listing.add_argument("--dead", action="store_true", help="only dead jobs")
    listing.add_argument(
        "--cause", metavar="TEXT", default="", help="only dead jobs of that cause, as in status"
    )
    listing.add_argument("--job", metavar="NAME", default="", help="only jobs of that name")
    listing.add_argument("--owner", metavar="ID", default="", help="only jobs of that owner")
    listing.add_argument(
        "--most", type=most, default=100, metavar="N", help="at most N jobs (default: 100)"
    )

    show = _add(actions, "show", "show all about one job", _SHOW, _READING)
    _add_key(show)

    relay = _add(actions, "relay", "ask the engine again for due jobs", _RELAY, _WORK)
    ends = relay.add_mutually_exclusive_group()
    ends.add_argument("--once", action="store_true", help="one round")
    ends.add_argument("--seconds", type=seconds, metavar="S", help="end after S seconds")

    run_ = _add(actions, "run", "run a job, and its owner's before it, here and now", _RUN, _WORK)
    _add_key(run_)

    redrive = _add(actions, "redrive", "let dead jobs run again", _REDRIVE, _WORK)
    _add_choice(redrive)
    redrive.add_argument(
        "--rate", type=_rate, default=50.0, metavar="N", help="at most N a second (default: 50)"
    )

    purge = _add(actions, "purge", "delete dead jobs for good", _PURGE, _WORK)
    _add_choice(purge)
    purge.add_argument("--yes", type=_number, metavar="N", help="do not ask: there are N of them")


def run(options: argparse.Namespace, invocation: Invocation) -> int:
    actions = importlib.import_module(options.actions)
    code: int = getattr(actions, options.action.replace("list", "list_"))(options, invocation)
    return code


def _add(
    actions: argparse._SubParsersAction[Parser],
    name: str,
    summary: str,
    details: str,
    module: str,
) -> argparse.ArgumentParser:
    no = {
        "status": "jobs are late (with --late)",
        "list": "",
        "show": "there is no such job",
        "relay": "",
        "run": "the job was not run, or has failed",
        "redrive": "some dead jobs are left",
        "purge": "nothing was purged",
    }[name]
    parser = add_action(actions, name, summary, details, no)
    add_app(parser, "outbox", "USERLOCK_OUTBOX")
    parser.set_defaults(actions=module)
    return parser


def _add_key(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument(
        "key", metavar="KEY", nargs="?" if optional else None, help="the job, as in list"
    )
    parser.add_argument(
        "--owner", metavar="ID", default="", help="its owner, if KEY is only its part of the key"
    )


def _add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the dead jobs that are meant: one, those of a cause, or all."""
    _add_key(parser, optional=True)
    parser.add_argument("--cause", metavar="TEXT", help="all of that cause, as in status")
    parser.add_argument("--all", action="store_true", help="all")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of jobs")
    return int(text)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.01 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate from 0.01 to 10000 a second")
    return value
