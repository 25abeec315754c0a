"""Show and repair an app's outbox: `userlock outbox status|list|show|relay|run|redrive|purge`.

The facts are those of the inspector too. All texts from rows (owners, arguments, errors, names) are
escaped and bounded here. If lock ids are hidden (`userlock.configure(show_ids=…)`), so are owners,
the first argument of calls, and keys, which contain the owner: a job is then named by the rest of
its key, and found with the owner's id.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.cloud import ndb

import userlock.ids as ids
from userlock.admin import command as cli
from userlock.admin.app import AppObject, heard, stoppable
from userlock.admin.command import CommandError, Console, Invocation
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
from userlock.events import JobRan
from userlock.ndb.owners import is_root_of, namespaces, owner_key
from userlock.outbox import listing
from userlock.outbox.dead_letters import Letter, letter_of
from userlock.outbox.listing import Status
from userlock.outbox.outbox import Outbox
from userlock.outbox.rows import (
    MOST_ERROR,
    JobRow,
    decoded,
    flaw_of,
    is_name,
    job_key,
    own_job_key,
    queued_jobs,
)
from userlock.outbox.waking import text_of
from userlock.outbox.worker import Outcome
from userlock.words import counted, legible, owner_in, span

#: How much is shown of a call, and of the names in a row, in characters.
_SHOWN_CALL, _SHOWN_NAME = 2_000, 300
#: How far dead jobs are counted before they are purged.
_MOST_PURGED = 1_000_000
#: The options of a read: what another process has written counts.
_FRESH = {"use_cache": False, "use_global_cache": False}
_NO_JOB = "there is no such job: it is done, was purged, or never was"

COLUMNS = (
    Column("state", "State"),
    Column("for", "For", "duration"),
    Column("attempts", "Tries", "count"),
    NAMESPACE,
    Column("owner", "Owner", "code"),
    Column("job", "Job", "code", 60),
    Column("key", "Key", "code"),
)
_LABELS = (
    *("call", "owner", "namespace", "key", "state", "staged", "ready", "attempts", "tier"),
    *("cause", "died", "blocks", "first error", "last error"),
)
CAUSES = (
    Column("dead", "Dead", "count"),
    Column("blocking", "Blocking", "count"),
    Column("cause", "Cause", "code"),
)


def key_of(text: str, owner: str = "") -> Any:
    """Return the key of a job. With the owner's id, the text may be its part of the key alone."""
    if is_name(text):
        if not owner:
            raise ValueError(f"{text} is a part of a key: the owner's id is needed with it")
        keys = [ndb.Key(JobRow, text, parent=owner_key(owner, each)) for each in namespaces()]
        rows = ndb.get_multi(keys, **_FRESH)
        there = [key for key, row in zip(keys, rows, strict=True) if row is not None]
        return (there or keys or [ndb.Key(JobRow, text, parent=owner_key(owner))])[0]
    return own_job_key(text)


def reference(letter: Letter) -> str:
    """Return the key of a job for people; if lock ids are hidden, the part without the owner."""
    return letter.key if ids.are_plain() else str(job_key(letter.key).id())


def read(key: Any) -> Letter | None:
    row = key.get(**_FRESH)
    return None if row is None else letter_of(row)


class Why(NamedTuple):
    """Why a job does not run at this moment, in a sentence; `by`: a reference to another job."""

    text: str
    by: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.by})" if self.by else self.text


def explain(letter: Letter, wall: float) -> Why:
    """Return why a job does not run at this moment, or that it does. In an ndb context."""
    if letter.flaw:
        fix = "To fix it: repair or delete the entity in Datastore."
        return Why(f"Its row is malformed ({letter.flaw}). {fix}")
    if letter.dead:
        return Why("It is dead: it runs again if it is redriven.")
    if letter.running:
        return Why("A worker has claimed it. If that worker has died, another one takes it over.")
    if letter.delayed and letter.ready_at > wall:
        when = span(letter.ready_at - wall)
        failed = f", after {counted(letter.attempts, 'failure')}" if letter.attempts else ""
        return Why(f"It is not due: it may run in {when}{failed}.")
    earlier = _holding_up(letter)
    if earlier is not None:
        first = letter_of(earlier)
        if first.flaw:
            told = "A job of its owner, whose row is malformed, may hold it up."
            return Why(told, reference(first))
        state = state_of(first, wall).replace("later", "to run again later")
        return Why(f"An earlier job of its owner holds it up, which is {state}.", reference(first))
    return Why(f"It has been due for {span(wall - letter.ready_at)}, and waits for a worker.")


def _holding_up(letter: Letter) -> Any:
    """Return the row that holds up a due one, by the rules of `worker.py`; None if none does.

    A malformed one may hold up all.
    """
    key, rows = job_key(letter.key), []
    for row in queued_jobs(letter.outbox, key.root()).iter(**_FRESH):
        if flaw_of(row):
            return row
        if row.key == key or row.attempts or row.first_error is not None or row.dead:
            rows.append(row)
    rows.sort(key=lambda row: row.rank)
    return rows[0] if any(row.key == key for row in rows[1:]) else None


class Chosen(NamedTuple):
    """The dead jobs that an operator means: one by its key, or those of a cause; empty for all."""

    outbox: Outbox
    key: Any = None
    cause: str = ""

    def count(self, most: int = 100_000) -> int:
        if self.key is None:
            return self.outbox.dead.count(self.cause, most=most)
        return len(self.first())

    def first(self, most: int = 1) -> list[Letter]:
        if self.key is None:
            return self.outbox.dead.list(self.cause, most=most)
        letter = read(self.key)
        return [] if letter is None or not letter.dead else [letter]

    def redrive(self, *, wait_timeout: float, stamp: int | None = None, **many: Any) -> list[bool]:
        """Redrive them; return for each whether it was. `many`: of `DeadLetters.redrive_all`."""
        dead = self.outbox.dead
        if self.key is not None:
            return [dead.redrive(text_of(self.key), wait_timeout=wait_timeout, stamp=stamp)]
        return [redriven for _, redriven in dead.redrive_all(self.cause, **many)]

    def purge(self, *, died_by: float, stamp: int | None = None) -> Iterator[bool]:
        """Delete those dead by then, or the one with the stamp; yield for each whether it was."""
        if self.key is None:
            for _ in self.outbox.dead.purge(self.cause, died_by=died_by):
                yield True
        else:
            yield self.outbox.dead.delete(text_of(self.key), stamp=stamp)


def state_of(letter: Letter, wall: float) -> str:
    if letter.flaw:
        return "malformed"
    if letter.dead:
        return "dead"
    if letter.running:
        return "running"
    return "later" if letter.delayed and letter.ready_at > wall else "due"


def call_of(letter: Letter) -> str:
    """Return the call, escaped and bounded. If lock ids are hidden, without the first argument."""
    name = legible(letter.job, _SHOWN_NAME)
    try:
        args, kwargs = decoded(letter.arguments)
    except ValueError:
        return f"{name}(…)"
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    if not ids.are_plain():
        # By position, the owner is the first one.
        for index, value in enumerate([*args, *kwargs.values()]):
            if (index == 0 and args) or str(value) == letter.owner:
                parts[index] = ids.show(letter.owner)
    return legible(f"{name}({without_owner(letter.owner, ', '.join(parts))})", _SHOWN_CALL)


def without_owner(owner: str, text: str) -> str:
    """Return a text without its owner's id, if ids are hidden and it is long enough to tell."""
    if ids.are_plain():
        return text
    for form in {owner, repr(owner)[1:-1]}:
        if len(form) > 2:
            text = text.replace(form, ids.show(owner))
    return text


def facts(letter: Letter, wall: float) -> Facts:
    state = state_of(letter, wall)
    late = max(wall - letter.ready_at, 0.0) if state in ("due", "later") else None
    return {
        "key": letter.key if ids.are_plain() else None,
        "name": str(job_key(letter.key).id()),
        "namespace": letter.namespace,
        "owner": ids.exact(letter.owner),
        "job": legible(letter.job, _SHOWN_NAME),
        "call": call_of(letter),
        "state": state,
        "tier": legible(letter.tier, _SHOWN_NAME),
        "attempts": letter.attempts,
        "redriven": letter.redriven,
        "staged": Moment(letter.staged_at),
        "ready": Moment(letter.ready_at),
        "late_seconds": late,
        "cause": legible(letter.cause, _SHOWN_NAME) or None,
        "died": Moment(letter.died_at) if letter.dead else None,
        "blocks": letter.blocks,
        "first_error": _error(letter, letter.first_error, letter.first_error_at),
        "last_error": _error(letter, letter.last_error, letter.last_error_at),
    }


def _error(letter: Letter, text: str, at: float) -> Facts | None:
    shown = legible(without_owner(letter.owner, text), MOST_ERROR)
    return {"text": shown, "at": Moment(at)} if at else None


def row(letter: Letter, wall: float) -> Facts:
    found = facts(letter, wall)
    since = {"dead": letter.died_at, "due": letter.ready_at, "later": letter.ready_at}
    at = since.get(found["state"])
    later = "in " if found["state"] == "later" else ""
    return {
        **found,
        "for": "" if at is None else later + span(abs(wall - at)),
        "owner": ids.show(letter.owner),
        "job": found["cause"] or found["job"],
        "key": reference(letter),
    }


def details(letter: Letter, wall: float, write: Write) -> dict[str, str]:
    found = {**facts(letter, wall), "owner": ids.show(letter.owner), "key": reference(letter)}
    if letter.redriven:
        found["attempts"] = f"{letter.attempts}, after {counted(letter.redriven, 'redrive')}"
    if letter.last_error_at == letter.first_error_at:
        found["last_error"] = None
    blocks = "its owner's later jobs wait until it is redriven or purged"
    found["blocks"] = blocks if letter.blocks else None
    return labelled(found, _LABELS, write)


def status_facts(status: Status) -> Facts:
    oldest = status.oldest
    return {
        "at": Moment(status.wall),
        **status.counts,
        "lag_seconds": status.lag,
        "oldest": None if oldest is None else facts(oldest, status.wall),
        "causes": causes(status),
        "complete": not status.notes,
        "notes": status.notes,
    }


def causes(status: Status) -> list[Facts]:
    return [
        {"cause": legible(each.name, _SHOWN_NAME), "dead": each.dead, "blocking": each.blocking}
        for each in status.causes
    ]


_RATE = cli.number("rate", 0.01, 10_000)
_YES = cli.number("number of jobs", 0, 999_999_999, whole=True)
_OWNER = cli.option("--owner", "ID", "its owner, if KEY is only its part of the key")
_KEY = cli.argument("key", metavar="KEY", help="the job, as in list")
#: The dead jobs that are meant: one, those of a cause, or all.
_CHOICE = (
    [
        cli.argument("key", metavar="KEY", nargs="?", help="the job, as in list"),
        cli.argument("--cause", metavar="TEXT", help="all of that cause, as in status"),
        cli.flag("--all", "all"),
    ],
    _OWNER,
)


@contextlib.contextmanager
def _context(outbox: Outbox) -> Iterator[None]:
    with contextlib.closing(outbox), outbox.context():
        yield


_APP = AppObject("outbox", "userlock.outbox.Outbox", Outbox, _context)


def _usable_key(options: argparse.Namespace) -> Any:
    try:
        key = key_of(options.key, options.owner)
    except ValueError as error:
        raise CommandError(f"{error}. To fix it: take KEY from `userlock outbox list`") from error
    if options.owner and not is_root_of(key.root(), options.owner):
        raise CommandError("KEY is a job of another owner than --owner")
    return key


def _chosen(options: argparse.Namespace, outbox: Outbox) -> Chosen:
    if options.key:
        return Chosen(outbox, _usable_key(options))
    if not (options.cause or options.all):
        raise CommandError("name the dead jobs: by KEY, by --cause TEXT, or by --all")
    if options.owner:
        raise CommandError("--owner goes with KEY alone: --cause and --all mean all owners' jobs")
    return Chosen(outbox, cause=options.cause or "")


@cli.command(
    cli.option("--late", "S", "exit with 1 if a job is late by more than S s", cli.seconds),
    no="jobs are late (with --late)",
)
def status(options: argparse.Namespace, invocation: Invocation, outbox: Outbox) -> int:
    """Show how many jobs wait, run and are dead.

    Waiting jobs are due, or have a later time; blocked ones wait behind a dead job of their
    owner. The lag is that of the job that has been due for the longest time. Exits with 1 if
    it is above --late. The JSON document has at, due, later, running, blocked, dead,
    lag_seconds, oldest (as in show), causes (cause, dead, blocking), complete and notes.
    """
    found = listing.take_status(outbox, invocation.console.clock.wall())
    lines = [", ".join(f"{number:,} {state}" for state, number in found.counts.items())]
    if found.oldest is not None:
        lines += [
            f"  oldest  has been due for {span(found.lag)}: {call_of(found.oldest)[:_SHOWN_NAME]} "
            f"of {owner_in(found.oldest.namespace, ids.show(found.oldest.owner))}",
            f"          {reference(found.oldest)}",
            f"          {explain(found.oldest, found.wall)}",
        ]
    lines += [f"  not complete: {note}" for note in found.notes]
    if found.causes:
        lines += [f"  {line}" for line in table(CAUSES, causes(found))]
    late = options.late is not None and found.lag > options.late
    if late:
        lines.append(f"late: the oldest job is due for more than {span(options.late)}")
    return invocation.answer(status_facts(found), *lines, no=late)


@cli.command(
    cli.flag("--dead", "only dead jobs"),
    cli.option("--cause", "TEXT", "only dead jobs of that cause, as in status"),
    cli.option("--job", "NAME", "only jobs of that name"),
    cli.option("--owner", "ID", "only jobs of that owner"),
    cli.most("jobs"),
)
def list_(options: argparse.Namespace, invocation: Invocation, outbox: Outbox) -> int:
    """List jobs.

    Jobs that run come first, then waiting ones by their time; dead ones are sorted by cause,
    those of one owner by their order. The JSON document has jobs (as in show), complete and
    note.
    """
    wanted = listing.Search(options.dead, options.cause, options.job, options.owner)
    found = listing.search(outbox, wanted, most=options.most)
    wall = invocation.console.clock.wall()
    lines = ["no jobs"]
    if found.letters:
        lines = table(COLUMNS, [row(each, wall) for each in found.letters])
    if found.note:
        lines.append(f"… {found.note}")
    jobs = [facts(each, wall) for each in found.letters]
    document = {"jobs": jobs, "complete": not found.note, "note": found.note}
    return invocation.answer(document, *lines)


@cli.command(_KEY, _OWNER, no="there is no such job")
def show(options: argparse.Namespace, invocation: Invocation, outbox: Outbox) -> int:
    """Show all about one job.

    The JSON document has key, name (the part of the key without the owner), namespace, owner,
    job, call, state (due, later, running, dead, malformed), tier, attempts, redriven, staged,
    ready, late_seconds, cause, died, blocks (dead, it holds up its owner's later jobs),
    first_error and last_error (text, at) and why (it does not run).
    """
    wall = invocation.console.clock.wall()
    letter = read(_usable_key(options))
    if letter is None:
        raise CommandError(_NO_JOB, cli.NO)
    why = str(explain(letter, wall))
    shown = details(letter, wall, local(wall))
    lines = [shown.pop("call"), *fields(shown), f"  {why}"]
    return invocation.answer({**facts(letter, wall), "why": why}, *lines)


@cli.command(cli.flag("--once", "one round"))
def relay(options: argparse.Namespace, invocation: Invocation, outbox: Outbox) -> int:
    """Ask the engine again for due jobs.

    Asks for jobs that are due and still there. Runs until Ctrl-C or SIGTERM, and then exits
    with 0. Any number of relays may run. The JSON document has woken, refused and shards
    (--once), or stopped.
    """
    with stoppable() as stop:
        if options.once:
            done = outbox.relay()
            text = f"{counted(done.woken, 'job')} woken, {done.refused:,} refused by the engine"
            return invocation.answer(done._asdict(), text)
        outbox.relay_until(stop)
    return invocation.answer({"stopped": stop()}, "the relay has ended")


@cli.command(_KEY, _OWNER, no="the job was not run, or has failed")
def run(options: argparse.Namespace, invocation: Invocation, outbox: Outbox) -> int:
    """Run a job, and its owner's before it, here and now.

    Runs some of the owner's later jobs too. Exits with 0 if that job is done. The JSON
    document has outcome (ran, nothing, busy), done, jobs (job, outcome, attempt, seconds,
    error) and why (the job is still there).
    """
    key = _usable_key(options)
    there = read(key) is not None
    with heard(JobRan) as jobs:
        outcome = outbox.run(key.urlsafe().decode()) if there else Outcome.NOTHING
    left = read(key)
    why = "" if there else _NO_JOB
    if outcome is Outcome.BUSY:
        why = "its owner is busy: another request has the lock"
    elif left is not None:
        why = str(explain(left, invocation.console.clock.wall()))
    ran, lines = [], []
    for each in jobs:
        job, error = legible(each.job, _SHOWN_NAME), without_owner(each.lock_id or "", each.error)
        found = {name: getattr(each, name) for name in ("outcome", "attempt", "seconds")}
        ran.append({"job": job, **found, "error": legible(error, MOST_ERROR)})
        says = f": {legible(error, _SHOWN_NAME)}" if error else ""
        took = f"{each.outcome} after {span(each.seconds)} (attempt {each.attempt})"
        lines.append(f"{job}: {took}{says}")
    if why:
        lines.append(f"{outcome.value}: {why}")
    done = there and left is None
    document = {"outcome": outcome.value, "done": done, "jobs": ran, "why": why}
    return invocation.answer(document, *lines, no=not done)


@cli.command(
    *_CHOICE,
    cli.option("--rate", "N", "at most N a second (default: 50)", _RATE, 50.0),
    no="some dead jobs are left",
)
def redrive(options: argparse.Namespace, invocation: Invocation, outbox: Outbox) -> int:
    """Let dead jobs run again.

    They run with all their attempts, each under its owner's lock. They go in batches of up to
    25. Ctrl-C or SIGTERM ends it after the current batch; the same command goes on with those
    that are left. Busy owners are tried once more at the end. Exits with 1 if any are left.
    The JSON document has redriven, skipped, left and interrupted (some are left).
    """
    chosen = _chosen(options, outbox)
    if options.key and read(chosen.key) is None:
        raise CommandError(_NO_JOB, cli.NO)
    with stoppable() as stop:
        changed = chosen.redrive(wait_timeout=10.0, rate=options.rate, stopped=stop)
        done, skipped = sum(changed), changed.count(False)
        left = skipped if options.key else chosen.count()
    why = "owners are busy, others have redriven them, this clock is behind, or the log says why"
    remark = ": it is not dead" if options.key else f" ({skipped:,} skipped: {why})"
    remark = remark if skipped else ""
    lines = [f"{counted(done, 'job')} redriven, {left:,} left{remark}"]
    interrupted = stop() and left > 0
    if interrupted:
        lines.append("Interrupted. The same command goes on with those that are left.")
    document = {"redriven": done, "skipped": skipped, "left": left, "interrupted": interrupted}
    return invocation.answer(document, *lines, no=left > 0)


@cli.command(
    *_CHOICE,
    cli.option("--yes", "N", "do not ask: there are N of them", _YES),
    no="nothing was purged",
)
def purge(options: argparse.Namespace, invocation: Invocation, outbox: Outbox) -> int:
    """Delete dead jobs for good.

    Deletes those that were dead when they were counted, and no others. Jobs that they held up
    go on. Asks twice on a terminal; otherwise it needs --yes with their number. The JSON
    document has purged, left, interrupted (some are left) and why (nothing was purged).
    """
    console = invocation.console
    began, chosen = console.clock.wall(), _chosen(options, outbox)
    if options.yes is None:
        console.check_can_ask("--yes N, with the number of the jobs")
    shown, done = chosen.first(), 0
    total = chosen.count(_MOST_PURGED) if shown else 0
    why = _refusal(options, console, chosen, total)
    with stoppable() as stop:
        if not why:
            for deleted in chosen.purge(died_by=began, stamp=shown[0].stamp):
                done += deleted
                if stop():
                    break
        left = total - done if options.key else chosen.count()
    interrupted = stop() and left > 0
    document = {"purged": done, "left": left, "interrupted": interrupted, "why": why}
    text = f"nothing purged: {why}" if why else f"{counted(done, 'job')} purged, {left:,} left"
    # A script that purges all of a cause may find none, if it says so.
    meant = options.key or total or options.yes
    return invocation.answer(document, text, no=not done and bool(meant))


def _refusal(options: argparse.Namespace, console: Console, chosen: Chosen, total: int) -> str:
    """Return why nothing is purged; empty if it is confirmed, by its number."""
    if total >= _MOST_PURGED:
        return f"there are {_MOST_PURGED:,} dead jobs or more: name a --cause"
    jobs = counted(total, "dead job")
    if options.yes not in (None, total):
        return f"found {jobs}, not {options.yes:,}"
    if not total:
        return "there are no such dead jobs"
    if options.yes is not None:
        return ""
    if not options.key:
        found = listing.take_status(chosen.outbox, console.clock.wall())
        for each in found.causes[:20]:
            if f"{each.name} ".startswith(f"{chosen.cause} ") or not chosen.cause:
                console.note(f"  {each.dead:>7,}  {legible(each.name, _SHOWN_NAME)}")
    if not console.agrees(f"Delete {jobs} for good? They will never run."):
        return "you said no"
    if console.ask("Type their number to delete them: ").replace(",", "") != str(total):
        return f"found {jobs}, and you typed another number"
    return ""


outbox = _APP.group(
    "outbox",
    "Show jobs of the outbox, relay and run them, redrive and purge dead ones.",
    "An outbox without service=, in an app\nthat calls no userlock.configure(service=…), takes "
    "locks from --store. Where ids are hidden,\nname a job by its part of the key, and --owner ID.",
    "jobs are late or left, nothing was run, redriven or purged",
    *(status, list_, show, relay, run, redrive, purge),
)
