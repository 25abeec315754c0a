"""Show an outbox: its status, lists, one job."""

from __future__ import annotations

import argparse

from userlock.admin import outbox as reading
from userlock.cli.app import opened_outbox
from userlock.cli.command import FINE, NO, CommandError, Invocation
from userlock.cli.console import Column, table, time_of_day
from userlock.ids import show as show_id
from userlock.outbox.dead_letters import Letter
from userlock.words import counted, legible, span

_CAUSES = (
    Column("DEAD", right=True),
    Column("BLOCKING", right=True),
    Column("CAUSE", least=20),
)
_JOBS = (
    Column("STATE"),
    Column("FOR", right=True),
    Column("TRIES", right=True),
    Column("OWNER", least=8),
    Column("JOB", least=12),
    Column("KEY"),
)
_SHOWN = 300


def status(options: argparse.Namespace, invocation: Invocation) -> int:
    """Show the status."""
    console = invocation.console
    with opened_outbox(options, invocation) as outbox, outbox.context():
        found = reading.take_status(outbox, console.clock.wall())
        oldest = found.oldest
        why = "" if oldest is None else str(reading.explain(oldest, found.wall))
    late = options.late is not None and found.lag > options.late
    if invocation.json:
        console.document(reading.status_facts(found))
        return NO if late else FINE
    lines = [
        f"{found.due:,} due, {found.later:,} later, {found.running:,} running, "
        f"{found.blocked:,} blocked, {found.dead:,} dead"
    ]
    if oldest is not None:
        lines.append(
            f"  oldest  has been due for {span(found.lag)}: {reading.call_of(oldest)[:_SHOWN]} "
            f"of {show_id(oldest.owner)}"
        )
        lines.append(f"          {reading.reference(oldest)}")
        lines.append(f"          {why}")
    lines += [f"  not complete: {note}" for note in found.notes]
    if found.causes:
        rows = [[f"{each.dead:,}", f"{each.blocking:,}", each.shown] for each in found.causes]
        causes = table(_CAUSES, rows, console.columns - 3, console.paint)
        lines += [f"  {line}" for line in causes]
    if late:
        word = console.paint("late", "warning")
        lines.append(f"{word}: the oldest job is due for more than {span(options.late)}")
    console.say("\n".join(lines))
    return NO if late else FINE


def list_(options: argparse.Namespace, invocation: Invocation) -> int:
    """List jobs."""
    console = invocation.console
    wanted = reading.Search(options.dead, options.cause, options.job, options.owner)
    with opened_outbox(options, invocation) as outbox:
        found = reading.search(outbox, wanted, most=options.most)
    wall = console.clock.wall()
    if invocation.json:
        console.document(
            {
                "jobs": [reading.job_facts(each, wall) for each in found.letters],
                "complete": not found.note,
                "note": found.note,
            }
        )
        return FINE
    lines = ["no jobs"]
    if found.letters:
        rows = [_row(each, wall) for each in found.letters]
        lines = table(_JOBS, rows, console.columns - 1, console.paint)
    if found.note:
        lines.append(f"… {found.note}")
    console.say("\n".join(lines))
    return FINE


def _row(letter: Letter, wall: float) -> list[str]:
    state = reading.state_of(letter, wall)
    since = {"dead": letter.died_at, "due": letter.ready_at, "later": letter.ready_at}.get(state)
    return [
        state,
        "" if since is None else ("in " if state == "later" else "") + span(abs(wall - since)),
        str(letter.attempts),
        show_id(letter.owner),
        legible(letter.cause or letter.job, _SHOWN),
        reading.reference(letter),
    ]


def show(options: argparse.Namespace, invocation: Invocation) -> int:
    """Show one job."""
    console = invocation.console
    wall = console.clock.wall()
    with opened_outbox(options, invocation) as outbox, outbox.context():
        key = usable_key(options.key, options.owner)
        letter = reading.read(key)
        why = NO_JOB if letter is None else str(reading.explain(letter, wall))
    if letter is None:
        if invocation.json:
            console.document({"error": why})
        console.note(f"userlock outbox: {why}")
        return NO
    if invocation.json:
        console.document({**reading.job_facts(letter, wall), "why": why})
    else:
        console.say("\n".join([*_lines(letter, wall), f"  {why}"]))
    return FINE


NO_JOB = "there is no such job: it is done, was purged, or never was"


def usable_key(text: str, owner: str) -> object:
    """Return the key of a job, in an ndb context; an error of the command line if it is none."""
    try:
        return reading.key_of(text, owner)
    except ValueError as error:
        raise CommandError(f"{error}. To fix it: take KEY from `userlock outbox list`") from error


def _lines(letter: Letter, wall: float) -> list[str]:
    def moment(at: float) -> str:
        return f"{time_of_day(at)}, {span(abs(wall - at))} {'ago' if at <= wall else 'from now'}"

    again = f", after {counted(letter.redriven, 'redrive')}" if letter.redriven else ""
    facts = {
        "owner": show_id(letter.owner),
        "key": reading.reference(letter),
        "state": reading.state_of(letter, wall),
        "staged": moment(letter.staged_at),
        "ready": moment(letter.ready_at),
        "attempts": f"{letter.attempts}{again}",
    }
    if letter.tier:
        facts["tier"] = legible(letter.tier, _SHOWN)
    if letter.dead:
        facts["cause"] = legible(letter.cause, _SHOWN)
        facts["died"] = moment(letter.died_at)
        if letter.blocks:
            facts["blocks"] = "its owner's later jobs wait until it is redriven or purged"
    errors = [("first", letter.first_error, letter.first_error_at)]
    if letter.last_error_at != letter.first_error_at:
        errors.append(("last", letter.last_error, letter.last_error_at))
    lines = [reading.call_of(letter)]
    lines += [f"  {label:12} {text}" for label, text in facts.items()]
    for label, text, at in errors:
        if at:
            lines.append(f"  {label + ' error':12} {moment(at)}")
            lines.append(f"  {'':12} {reading.error_of(letter, text)}")
    return lines
