"""Show requests with an idempotency key, complete unfinished ones, remove old answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from userlock.admin import requests as reading
from userlock.cli.app import Stop, opened_flows
from userlock.cli.command import FINE, INTERRUPTED, NO, CommandError, Invocation, usable_lock_id
from userlock.cli.console import Column, table, time_of_day
from userlock.events import LISTENERS, Event, RequestServed
from userlock.idempotency import Answer, Flows, Request
from userlock.idempotency.answers import FIRST_UNSTORED
from userlock.ids import show as show_id
from userlock.lock.configuration import defaults
from userlock.words import counted, legible, span

_SHOWN = 300
_REQUESTS = (
    Column("STATE"),
    Column("FOR", right=True),
    Column("TRIES", right=True),
    Column("USER", least=8),
    Column("FLOW", least=12),
    Column("KEY", least=20),
)


# --- show ---------------------------------------------------------------------------------------


def list_(options: argparse.Namespace, invocation: Invocation) -> int:
    """List requests."""
    console = invocation.console
    user = usable_lock_id(options.user) if options.user else ""
    with opened_flows(options, invocation):
        found = (reading.finished if options.done else reading.unfinished)(options.most, user)
        wall, is_held = console.clock.wall(), reading.Holders(defaults.service)
        if invocation.json:
            console.document({"requests": [reading.facts(each, wall, is_held) for each in found]})
            return FINE
        lines = ["no requests"]
        if found:
            rows = [_row(each, wall, is_held) for each in found]
            lines = table(_REQUESTS, rows, console.columns - 1, console.paint)
    console.say("\n".join(lines))
    return FINE


def _row(found: reading.Found, wall: float, is_held: reading.IsHeld) -> list[str]:
    since = found.finished_at or found.begun_at
    return [
        reading.state_of(found, wall, is_held),
        span(wall - since) if since else "?",
        str(found.attempts),
        show_id(found.user),
        legible(found.flow, _SHOWN),
        show_id(found.key),
    ]


def show(options: argparse.Namespace, invocation: Invocation) -> int:
    """Show one request."""
    console = invocation.console
    user = usable_lock_id(options.user)
    with opened_flows(options, invocation):
        found = reading.read(user, options.key)
        wall, is_held = console.clock.wall(), reading.Holders(defaults.service)
        if found is None:
            why = "there is no such request: its answer is no longer kept, or it never was"
            if invocation.json:
                console.document({"error": why})
            console.note(f"userlock flows: {why}")
            return NO
        facts = reading.facts(found, wall, is_held)
    if invocation.json:
        console.document(facts)
        return FINE

    def moment(at: float) -> str:
        return f"{time_of_day(at)}, {span(abs(wall - at))} {'ago' if at <= wall else 'from now'}"

    shown = {
        "user": facts["user"],
        "key": facts["key"],
        "request": facts["request"] or "a call of a function",
        "state": facts["state"],
        "attempts": f"{found.attempts}",
        "begun": moment(found.begun_at),
        "points": ", ".join(facts["points"]) or "none",
    }
    if found.status is not None:
        shown["answer"] = f"{found.status}"
        shown["finished"] = moment(found.finished_at)
        shown["kept"] = f"until {moment(found.expires_at)}"
    else:
        by = "the server or its client" if found.completable else "its client alone"
        shown["completed by"] = by
    lines = [facts["flow"], *(f"  {label:12} {text}" for label, text in shown.items())]
    console.say("\n".join(lines))
    return FINE


# --- work ---------------------------------------------------------------------------------------


def complete(options: argparse.Namespace, invocation: Invocation) -> int:
    """Complete unfinished requests."""
    console = invocation.console
    if bool(options.key) != bool(options.user):
        raise CommandError("a request is named by KEY and --user together, or by neither")
    user = usable_lock_id(options.user) if options.user else ""
    done: list[tuple[Request, Answer | None, str]] = []
    errors: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, RequestServed):
            errors.append(event.error)

    with opened_flows(options, invocation) as flows, Stop().listening() as stop:
        LISTENERS.add(listen)
        try:
            for request in _meant(flows, user, options.key, options.older_than, stop):
                answer = flows.complete_one(request)
                error = "" if answer is not None and answer.status < FIRST_UNSTORED else errors[-1]
                done.append((request, answer, error))
                if not invocation.json:
                    console.say(_outcome(request, answer, error))
        finally:
            LISTENERS.remove(listen)
    failed = sum(bool(error) for _, _, error in done)
    if invocation.json:
        console.document(
            {
                "requests": [
                    {
                        "user": show_id(request.user_id),
                        "key": show_id(request.key),
                        "flow": legible(request.flow, _SHOWN),
                        "status": None if answer is None else answer.status,
                        "error": legible(error, _SHOWN),
                    }
                    for request, answer, error in done
                ],
                "completed": len(done) - failed,
                "failed": failed,
                "interrupted": stop.requested,
            }
        )
    else:
        rest = f", {failed:,} failed again" if failed else ""
        console.say(f"{counted(len(done) - failed, 'request')} completed{rest}")
    if stop.requested:
        return INTERRUPTED
    return NO if failed else FINE


def _meant(
    flows: Flows, user: str, key: str | None, older_than: float, stopped: Callable[[], bool]
) -> Iterator[Request]:
    if key:
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


def _outcome(request: Request, answer: Answer | None, error: str) -> str:
    name = f"{legible(request.flow, _SHOWN)} of {show_id(request.user_id)}"
    if error or answer is None:
        return f"{name}: not complete: {legible(error, _SHOWN)}"
    return f"{name}: answered with {answer.status}"


def reap(options: argparse.Namespace, invocation: Invocation) -> int:
    """Remove answers that are no longer kept."""
    console = invocation.console
    with opened_flows(options, invocation) as flows, Stop().listening() as stop:
        removed = flows.reap(stopped=stop)
    if invocation.json:
        console.document({"removed": removed, "interrupted": stop.requested})
    else:
        console.say(f"{counted(removed, 'answer')} removed")
    return INTERRUPTED if stop.requested else FINE
