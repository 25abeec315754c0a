"""Show and repair an app's outbox: `userlock outbox status|list|show|relay|run|redrive|purge`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from userlock.admin import jobs as reading
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
    number,
    seconds,
)
from userlock.cli.console import Console
from userlock.events import JobRan
from userlock.ids import show as show_id
from userlock.outbox.apps import VARIABLE, find_outbox
from userlock.outbox.outbox import Outbox
from userlock.outbox.worker import Outcome
from userlock.words import counted, legible, span

_SHOWN = 300
_SHOWN_ERROR = 2_000
#: The longest wait for the owner of one job.
_BUSY_SECONDS = 10.0
#: How far dead jobs are counted before they are purged.
_MOST_PURGED = 1_000_000
_MOST_CAUSES = 20
_NO_JOB = "there is no such job: it is done, was purged, or never was"

_OWNER = argument(
    "--owner", metavar="ID", default="", help="its owner, if KEY is only its part of the key"
)
_KEY = argument("key", metavar="KEY", help="the job, as in list")
#: The dead jobs that are meant: one, those of a cause, or all.
_CHOICE = (
    argument("key", metavar="KEY", nargs="?", help="the job, as in list"),
    _OWNER,
    argument("--cause", metavar="TEXT", help="all of that cause, as in status"),
    argument("--all", action="store_true", help="all"),
)


@contextlib.contextmanager
def _context(outbox: Outbox) -> Iterator[None]:
    with contextlib.closing(outbox), outbox.context():
        yield


_APP = AppObject("outbox", VARIABLE, Outbox, find_outbox, _context)


def _usable_key(options: argparse.Namespace) -> Any:
    """Return the key of a job, in an ndb context; an error of the command line if it is none."""
    try:
        return reading.key_of(options.key, options.owner)
    except ValueError as error:
        raise CommandError(f"{error}. To fix it: take KEY from `userlock outbox list`") from error


# --- show ---------------------------------------------------------------------------------------


@command(
    argument(
        "--late", type=seconds, metavar="S", help="exit with 1 if a job is late by more than S s"
    ),
    no="jobs are late (with --late)",
)
def status(options: argparse.Namespace, invocation: Invocation) -> int:
    """Show how many jobs wait, run and are dead.

    Waiting jobs are due, or have a later time; blocked ones wait behind a dead job of their
    owner. The lag is that of the job that has been due for the longest time. Exits with 1 if
    it is above --late. The JSON document has at, due, later, running, blocked, dead,
    lag_seconds, oldest (as in show), causes (cause, dead, blocking), complete and notes.
    """
    console = invocation.console
    with _APP.opened(options, invocation) as outbox:
        found = reading.take_status(outbox, console.clock.wall())
        oldest = found.oldest
        why = "" if oldest is None else str(reading.explain(oldest, found.wall))
    lines = [", ".join(f"{number:,} {state}" for state, number in found.counts.items())]
    if oldest is not None:
        lines += [
            f"  oldest  has been due for {span(found.lag)}: {reading.call_of(oldest)[:_SHOWN]} "
            f"of {show_id(oldest.owner)}",
            f"          {reading.reference(oldest)}",
            f"          {why}",
        ]
    lines += [f"  not complete: {note}" for note in found.notes]
    if found.causes:
        causes = table(reading.CAUSES, [each.facts for each in found.causes])
        lines += [f"  {line}" for line in causes]
    late = options.late is not None and found.lag > options.late
    if late:
        lines.append(f"late: the oldest job is due for more than {span(options.late)}")
    return invocation.answer(reading.status_facts(found), lines, no=late)


@command(
    argument("--dead", action="store_true", help="only dead jobs"),
    argument(
        "--cause", metavar="TEXT", default="", help="only dead jobs of that cause, as in status"
    ),
    argument("--job", metavar="NAME", default="", help="only jobs of that name"),
    argument("--owner", metavar="ID", default="", help="only jobs of that owner"),
    most("jobs"),
)
def list_(options: argparse.Namespace, invocation: Invocation) -> int:
    """List jobs.

    Jobs that run come first, then waiting ones by their time; dead ones are sorted by cause,
    those of one owner by their order. The JSON document has jobs (as in show), complete and
    note.
    """
    console = invocation.console
    wanted = reading.Search(options.dead, options.cause, options.job, options.owner)
    with _APP.opened(options, invocation) as outbox:
        found = reading.search(outbox, wanted, most=options.most)
    wall = console.clock.wall()
    lines = ["no jobs"]
    if found.letters:
        lines = table(reading.COLUMNS, [reading.row(each, wall) for each in found.letters])
    if found.note:
        lines.append(f"… {found.note}")
    document = {
        "jobs": [reading.facts(each, wall) for each in found.letters],
        "complete": not found.note,
        "note": found.note,
    }
    return invocation.answer(document, lines)


@command(_KEY, _OWNER, no="there is no such job")
def show(options: argparse.Namespace, invocation: Invocation) -> int:
    """Show all about one job.

    The JSON document has key, name (the part of the key without the owner), namespace, owner,
    job, call, state (due, later, running, dead), tier, attempts, redriven, staged, ready,
    late_seconds, cause, died, blocks (dead, it holds up its owner's later jobs), first_error
    and last_error (text, at) and why (it does not run).
    """
    console = invocation.console
    wall = console.clock.wall()
    with _APP.opened(options, invocation):
        letter = reading.read(_usable_key(options))
        if letter is None:
            raise CommandError(_NO_JOB, NO)
        why = str(reading.explain(letter, wall))
    details = reading.details(letter, wall, local(wall))
    lines = [details.pop("call"), *fields(details), f"  {why}"]
    return invocation.answer({**reading.facts(letter, wall), "why": why}, lines)


# --- relay and run ------------------------------------------------------------------------------


@command(
    [
        argument("--once", action="store_true", help="one round"),
        argument("--seconds", type=seconds, metavar="S", help="end after S seconds"),
    ]
)
def relay(options: argparse.Namespace, invocation: Invocation) -> int:
    """Ask the engine again for due jobs.

    Asks for jobs that are due and still there. Runs until Ctrl-C or SIGTERM, and then exits
    with 0. Any number of relays may run. The JSON document has woken, refused and shards
    (--once), or stopped.
    """
    clock = invocation.console.clock
    with _APP.opened(options, invocation) as outbox, Stop().listening() as stop:
        if options.once:
            done = outbox.relay()
            text = f"{counted(done.woken, 'job')} woken, {done.refused:,} refused by the engine"
            document = {"woken": done.woken, "refused": done.refused, "shards": done.shards}
            return invocation.answer(document, [text])
        ends = None if options.seconds is None else clock.now() + options.seconds
        outbox.relay_until(lambda: stop() or (ends is not None and clock.now() >= ends))
    return invocation.answer({"stopped": stop()}, ["the relay has ended"])


@command(_KEY, _OWNER, no="the job was not run, or has failed")
def run(options: argparse.Namespace, invocation: Invocation) -> int:
    """Run a job, and its owner's before it, here and now.

    Runs some of the owner's later jobs too. Exits with 0 if that job is done. The JSON
    document has outcome (ran, nothing, busy), done, jobs (job, outcome, attempt, seconds,
    error) and why (the job is still there).
    """
    with _APP.opened(options, invocation) as outbox:
        key = _usable_key(options)
        there = reading.read(key) is not None
        with heard(JobRan) as jobs:
            outcome = outbox.run(key.urlsafe().decode()) if there else Outcome.NOTHING
        left = reading.read(key)
        why = ""
        if not there:
            why = _NO_JOB
        elif outcome is Outcome.BUSY:
            why = "its owner is busy: another request has the lock"
        elif left is not None:
            why = str(reading.explain(left, invocation.console.clock.wall()))
    done = there and left is None
    facts, lines = [], []
    for each in jobs:
        error = reading.without_owner(each.lock_id or "", each.error)
        job = legible(each.job, _SHOWN)
        facts.append(
            {
                "job": job,
                "outcome": each.outcome,
                "attempt": each.attempt,
                "seconds": each.seconds,
                "error": legible(error, _SHOWN_ERROR),
            }
        )
        says = f": {legible(error, _SHOWN)}" if error else ""
        took = span(each.seconds)
        lines.append(f"{job}: {each.outcome} after {took} (attempt {each.attempt}){says}")
    if why:
        lines.append(f"{outcome.value}: {why}")
    document = {"outcome": outcome.value, "done": done, "jobs": facts, "why": why}
    return invocation.answer(document, lines, no=not done)


# --- redrive ------------------------------------------------------------------------------------


@command(
    *_CHOICE,
    argument(
        "--rate",
        type=number("rate", 0.01, 10_000),
        default=50.0,
        metavar="N",
        help="at most N a second (default: 50)",
    ),
    no="some dead jobs are left",
)
def redrive(options: argparse.Namespace, invocation: Invocation) -> int:
    """Let dead jobs run again.

    They run with all their attempts, each under its owner's lock. They go in batches of up to
    25. Ctrl-C or SIGTERM ends it after the current batch; the same command goes on with those
    that are left. Busy owners are tried once more at the end. Exits with 1 if any are left.
    The JSON document has redriven, skipped, left and interrupted.
    """
    _check_choice(options)
    done = skipped = 0
    with _APP.opened(options, invocation) as outbox, Stop().listening() as stop:
        chosen = _chosen(options, outbox)
        for redriven in chosen.redrive(wait_timeout=_BUSY_SECONDS, rate=options.rate, stopped=stop):
            done, skipped = done + redriven, skipped + (not redriven)
        left = skipped if options.key else chosen.count()
    remark = ""
    if skipped and options.key:
        remark = ": it is not dead"
    elif skipped:
        remark = (
            f" ({skipped:,} skipped: their owners are busy, others have redriven them, or the log "
            f"says why)"
        )
    lines = [f"{counted(done, 'job')} redriven, {left:,} left{remark}"]
    if stop.requested and left:
        lines.append("Interrupted. The same command goes on with those that are left.")
    document = {"redriven": done, "skipped": skipped, "left": left, "interrupted": stop.requested}
    interrupted = stop.requested and left > 0
    return invocation.answer(document, lines, no=left > 0, interrupted=interrupted)


def _check_choice(options: argparse.Namespace) -> None:
    given = [options.key is not None, options.cause is not None, options.all]
    if sum(given) != 1 or options.cause == "" or options.key == "":
        raise CommandError("name the dead jobs: by KEY, by --cause TEXT, or by --all")


def _chosen(options: argparse.Namespace, outbox: Outbox) -> reading.Chosen:
    key = _usable_key(options) if options.key else None
    return reading.Chosen(outbox, key, options.cause or "")


# --- purge --------------------------------------------------------------------------------------


@command(
    *_CHOICE,
    argument(
        "--yes",
        type=number("number of jobs", 0, 999_999_999, whole=True),
        metavar="N",
        help="do not ask: there are N of them",
    ),
    no="nothing was purged",
)
def purge(options: argparse.Namespace, invocation: Invocation) -> int:
    """Delete dead jobs for good.

    Deletes those that were dead when they were counted, and no others. Jobs that they held up
    go on. Asks twice on a terminal; otherwise it needs --yes with their number. The JSON
    document has purged, left, interrupted and why (nothing was purged).
    """
    console = invocation.console
    _check_choice(options)
    if options.yes is None and not console.can_ask:
        raise CommandError(
            "cannot ask: standard input is not a terminal. To fix it: pass --yes N, with the "
            "number of the jobs"
        )
    done = 0
    with _APP.opened(options, invocation) as outbox:
        began, chosen = console.clock.wall(), _chosen(options, outbox)
        shown, total = chosen.first(), chosen.count(_MOST_PURGED)
        if not (shown and total):
            why = "no dead job is meant"
        elif total >= _MOST_PURGED:
            why = f"there are {_MOST_PURGED:,} dead jobs or more: name a --cause"
        else:
            why = _refusal(options, console, chosen, total)
        with Stop().listening() as stop:
            if not why:
                for deleted in chosen.purge(died_by=began, stamp=shown[0].stamp):
                    done += deleted
                    if stop():
                        break
            left = total - done if options.key else chosen.count()
    document = {"purged": done, "left": left, "interrupted": stop.requested, "why": why}
    text = f"nothing purged: {why}" if why else f"{counted(done, 'job')} purged, {left:,} left"
    # A script that purges all of a cause may find none.
    fine = done or not (options.key or total)
    interrupted = stop.requested and left > 0
    return invocation.answer(document, [text], no=not fine, interrupted=interrupted)


def _refusal(
    options: argparse.Namespace, console: Console, chosen: reading.Chosen, total: int
) -> str:
    """Return why nothing is purged; empty if it is confirmed, by its number."""
    jobs = counted(total, "dead job")
    if options.yes is not None:
        return "" if options.yes == total else f"there are {jobs}, not {options.yes:,}"
    if not options.key:
        causes = reading.take_status(chosen.outbox, console.clock.wall()).causes
        for each in causes[:_MOST_CAUSES]:
            if f"{each.name} ".startswith(f"{chosen.cause} ") or not chosen.cause:
                console.note("  {dead:>7,}  {cause}".format(**each.facts))
    if not console.agrees(f"Delete {jobs} for good? They will never run."):
        return "you said no"
    if console.ask("Type their number to delete them: ").replace(",", "") != str(total):
        return f"there are {jobs}, and you typed another number"
    return ""


outbox = group(
    "outbox",
    """\
Show jobs of the outbox, relay and run them, redrive and purge dead ones.

The app's userlock.outbox.Outbox is named by --app MODULE:ATTRIBUTE or USERLOCK_OUTBOX of the
environment, or is the only one of the app in USERLOCK_APP, and is imported from the current
directory. An outbox without service=, in an app that calls no userlock.configure(service=…),
takes locks from --store.

Every action has --help. USERLOCK_SHOW_IDS=masked or hashed hides owners, the first
argument of calls, and keys: name a job then by its part of the key, and --owner ID.
""",
    "jobs are late or left, nothing was run, redriven or purged",
    _APP.argument,
    status,
    list_,
    show,
    relay,
    run,
    redrive,
    purge,
)
