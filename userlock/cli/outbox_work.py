"""Work on an outbox: relay, run, redrive, purge."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from userlock.admin import outbox as reading
from userlock.cli.app import Progress, Stop, opened_outbox
from userlock.cli.command import FINE, INTERRUPTED, NO, CommandError, Invocation
from userlock.cli.console import Console
from userlock.cli.outbox_reading import NO_JOB, usable_key
from userlock.events import LISTENERS, Event, JobRan
from userlock.outbox.outbox import Outbox
from userlock.outbox.worker import Outcome
from userlock.words import counted, legible, span

_SHOWN = 300
#: The longest wait for the owner of one job.
_BUSY_SECONDS = 10.0
#: How far dead jobs are counted before they are purged.
_MOST_PURGED = 1_000_000
_MOST_CAUSES = 20


# --- relay --------------------------------------------------------------------------------------


def relay(options: argparse.Namespace, invocation: Invocation) -> int:
    """Relay once, for a time, or until it is stopped."""
    console = invocation.console
    with opened_outbox(options, invocation) as outbox, Stop().listening() as stop:
        if options.once:
            with outbox.context():
                done = outbox.relay()
            answer = {"woken": done.woken, "refused": done.refused, "shards": done.shards}
            text = f"{counted(done.woken, 'job')} woken, {done.refused:,} refused by the engine"
        else:
            clock = console.clock
            ends = None if options.seconds is None else clock.now() + options.seconds
            with outbox.context():
                pass  # without a client, it fails here, and not in each round
            outbox.relay_until(lambda: stop() or (ends is not None and clock.now() >= ends))
            answer, text = {"stopped": stop()}, "the relay has ended"
    if invocation.json:
        console.document(answer)
    else:
        console.say(text)
    return FINE


# --- run ----------------------------------------------------------------------------------------


def run(options: argparse.Namespace, invocation: Invocation) -> int:
    """Run a job, and its owner's before it."""
    console = invocation.console
    jobs: list[JobRan] = []

    def listen(event: Event) -> None:
        if isinstance(event, JobRan):
            jobs.append(event)

    with opened_outbox(options, invocation) as outbox, outbox.context():
        key = usable_key(options.key, options.owner)
        there = reading.read(key) is not None
        LISTENERS.add(listen)
        try:
            outcome = outbox.run(_text(key)) if there else Outcome.NOTHING
        finally:
            LISTENERS.remove(listen)
        left = reading.read(key)
        why = ""
        if not there:
            why = NO_JOB
        elif outcome is Outcome.BUSY:
            why = "its owner is busy: another request has the lock"
        elif left is not None:
            why = str(reading.explain(left, console.clock.wall()))
    done = there and left is None
    if invocation.json:
        facts = [
            {
                "job": legible(each.job, _SHOWN),
                "outcome": each.outcome,
                "attempt": each.attempt,
                "seconds": each.seconds,
                "error": _error(each, 2_000),
            }
            for each in jobs
        ]
        console.document({"outcome": outcome.value, "done": done, "jobs": facts, "why": why})
    else:
        for each in jobs:
            error = f": {_error(each, _SHOWN)}" if each.error else ""
            console.say(
                f"{legible(each.job, _SHOWN)}: {each.outcome} after {span(each.seconds)} "
                f"(attempt {each.attempt}){error}"
            )
        if why:
            console.say(f"{outcome.value}: {why}")
    return FINE if done else NO


def _error(ran: JobRan, most: int) -> str:
    return legible(reading.without_owner(ran.lock_id or "", ran.error), most)


def _text(key: Any) -> str:
    return str(key.urlsafe().decode())


# --- redrive ------------------------------------------------------------------------------------


def redrive(options: argparse.Namespace, invocation: Invocation) -> int:
    """Let dead jobs run again."""
    console = invocation.console
    _check_choice(options)
    done = skipped = 0
    with (
        opened_outbox(options, invocation) as outbox,
        outbox.context(),
        Stop().listening() as stop,
    ):
        progress = Progress(console)
        total = 1 if options.key else outbox.dead.count(options.cause or "")
        for redriven in _redriven(options, outbox, stop):
            done, skipped = done + redriven, skipped + (not redriven)
            progress.show(f"{done:,} of {total:,} redriven")
        progress.end()
        left = skipped if options.key else outbox.dead.count(options.cause or "")
    if invocation.json:
        console.document(
            {"redriven": done, "skipped": skipped, "left": left, "interrupted": stop.requested}
        )
    else:
        console.say(f"{counted(done, 'job')} redriven, {left:,} left" + _remark(options, skipped))
        if stop.requested and left:
            console.say("Interrupted. The same command goes on with those that are left.")
    if stop.requested and left:
        return INTERRUPTED
    return NO if left else FINE


def _redriven(options: argparse.Namespace, outbox: Outbox, stop: Stop) -> Iterator[bool]:
    if options.key:
        key = usable_key(options.key, options.owner)
        yield outbox.dead.redrive(key, wait_timeout=_BUSY_SECONDS)
        return
    for _, redriven in outbox.dead.redrive_all(
        options.cause or "", rate=options.rate, stopped=stop
    ):
        yield redriven


def _remark(options: argparse.Namespace, skipped: int) -> str:
    if not skipped:
        return ""
    if options.key:
        return ": it is not dead"
    return (
        f" ({skipped:,} skipped: their owners are busy, others have redriven them, or the log "
        f"says why)"
    )


def _check_choice(options: argparse.Namespace) -> None:
    given = [options.key is not None, options.cause is not None, options.all]
    if sum(given) != 1 or options.cause == "" or options.key == "":
        raise CommandError("name the dead jobs: by KEY, by --cause TEXT, or by --all")


# --- purge --------------------------------------------------------------------------------------


def purge(options: argparse.Namespace, invocation: Invocation) -> int:
    """Delete dead jobs."""
    console = invocation.console
    _check_choice(options)
    if options.yes is None and not console.can_ask:
        raise CommandError(
            "cannot ask: standard input is not a terminal. To fix it: pass --yes N, with the "
            "number of the jobs"
        )
    with opened_outbox(options, invocation) as outbox, outbox.context():
        began = console.clock.wall()
        key = usable_key(options.key, options.owner) if options.key else None
        letter = reading.read(key) if key is not None else None
        cause = options.cause or ""
        if key is None:
            number = outbox.dead.count(cause, most=_MOST_PURGED)
        else:
            number = int(letter is not None and letter.dead)
        if not number:
            why = "no dead job is meant"
        elif number >= _MOST_PURGED:
            why = f"there are {_MOST_PURGED:,} dead jobs or more: name a --cause"
        else:
            why = _refusal(options, console, outbox, number, cause)
        done = 0
        with Stop().listening() as stop:
            if not why:
                progress = Progress(console)
                for deleted in _purged(outbox, key, letter, cause, began):
                    done += deleted
                    progress.show(f"{done:,} of {number:,} deleted")
                    if stop():
                        break
                progress.end()
            left = number - done if key is not None else outbox.dead.count(cause)
    if invocation.json:
        interrupted = stop.requested
        document = {"purged": done, "left": left, "interrupted": interrupted, "why": why}
        console.document(document)
    elif why:
        console.say(f"nothing purged: {why}")
    else:
        console.say(f"{counted(done, 'job')} purged, {left:,} left")
    if stop.requested and left:
        return INTERRUPTED
    # A script that purges all of a cause may find none.
    nothing = key is None and not number
    return FINE if done or nothing else NO


def _purged(outbox: Outbox, key: Any, letter: Any, cause: str, began: float) -> Iterator[bool]:
    if key is not None:
        yield outbox.dead.delete(key, stamp=letter.stamp)
        return
    for _ in outbox.dead.purge(cause, died_by=began):
        yield True


def _refusal(
    options: argparse.Namespace, console: Console, outbox: Outbox, number: int, cause: str
) -> str:
    """Return why nothing is purged; empty if it is confirmed, by its number."""
    jobs = counted(number, "dead job")
    if options.yes is not None:
        return "" if options.yes == number else f"there are {jobs}, not {options.yes:,}"
    if not options.key:
        for each in reading.take_status(outbox, console.clock.wall()).causes[:_MOST_CAUSES]:
            if f"{each.name} ".startswith(f"{cause} ") or not cause:
                console.note(f"  {each.dead:>7,}  {each.shown}")
    console.note(f"Delete {jobs} for good? They will never run. [y/N] ", end="")
    if _answer(console).lower() not in ("y", "yes"):
        return "you said no"
    console.note("Type their number to delete them: ", end="")
    if _answer(console).replace(",", "") != str(number):
        return f"there are {jobs}, and you typed another number"
    return ""


def _answer(console: Console) -> str:
    answer = console.stdin.readline()
    if not answer.endswith("\n"):
        console.note("")  # the input has ended
    return answer.strip()
