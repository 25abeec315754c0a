"""Show a lock's holder and its queue: `userlock holder ID`."""

from __future__ import annotations

import argparse
import collections

from userlock.admin import snapshot
from userlock.cli.command import (
    FINE,
    NO,
    Invocation,
    add_lock_id,
    unreachable,
    usable_lock_id,
)
from userlock.cli.console import Column, Paint, table, time_of_day
from userlock.errors import LockServiceUnavailable
from userlock.ids import show, show_request
from userlock.lock.record import Record
from userlock.lock.service import LockService
from userlock.words import escaped, span

NAME = "holder"
SUMMARY = "show the holder of a lock, its remaining lease, and the queue"
NO_MEANS = "nobody holds it"
DETAILS = """\
Times are by the clocks of the holder and the waiters. The remaining lease is by the
clock of the store. The JSON document has lock_id, held, seconds_left, holder (process,
request, priority, since, held_seconds, lease_seconds, waits_for, token, foreign),
waiting (the number of waiters) and waiters (the first 100), in queue order.

USERLOCK_SHOW_IDS=masked or hashed hides lock ids, and the paths of requests, in the
output of all commands. Hashes need the key of the app in USERLOCK_ID_KEY.
"""

_QUEUE = (
    Column("#", right=True),
    Column("PROCESS", least=10),
    Column("REQUEST", least=10),
    Column("PRIORITY"),
    Column("WAITING", right=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_lock_id(parser)


def run(options: argparse.Namespace, invocation: Invocation) -> int:
    lock_id = usable_lock_id(options.lock_id)
    service = invocation.service()
    record = look(service, lock_id)
    held = record is not None and not record.free
    left = seconds_left(record) if held else None
    console = invocation.console
    wall = console.clock.wall()
    if invocation.json:
        console.document({**snapshot.facts(lock_id, record, wall), "seconds_left": left})
    else:
        lines = describe(lock_id, record, wall, left, console.columns, console.paint)
        console.say("\n".join(lines))
    return FINE if held else NO


def look(service: LockService, lock_id: str) -> Record | None:
    """Return the lock's record. A store that does not answer ends the command."""
    try:
        return service.look(lock_id)
    except LockServiceUnavailable as error:
        raise unreachable(error.reason) from error


def seconds_left(record: Record | None) -> float | None:
    """Return the remaining time of the lease, if the store reports it."""
    left = None if record is None else record.stored.seconds_left
    return None if left is None else max(left, 0.0)


def name_of(process: str, request: str) -> str:
    """Return a holder or waiter in one phrase."""
    return escaped(f"{process} {show_request(request)}".strip()) or "?"


def describe(
    lock_id: str,
    record: Record | None,
    wall: float,
    left: float | None,
    columns: int,
    paint: Paint,
) -> list[str]:
    """Return a lock in lines for people; `left` are the seconds left of its lease, if known."""
    name = show(lock_id)
    not_held = paint("not held", "ok")
    if record is None or (record.free and record.empty):
        return [f"{name}: {not_held}, no waiters"]
    if record.free:
        why = "was released" if record.released else "ran out"
        if record.broken_by:
            why = f"was broken by {escaped(record.broken_by)}"
        why += ", and the first waiter may take the lock"
        lines = [f"{name}: {not_held}; the last lease {why}"]
    elif snapshot.is_foreign(record):
        lines = [
            f"{name}: {paint('blocked', 'wrong')}: {snapshot.FOREIGN} is stored under its key",
            "  Nobody can take the lock. Does another program use the same prefix?",
            "  To fix it: `userlock break` removes the record.",
        ]
    else:
        lines = [f"{name}: {paint('held', 'warning')}", *_holder_lines(record, wall, left)]
    return lines + _queue_lines(record, wall, columns, paint)


def _holder_lines(record: Record, wall: float, left: float | None) -> list[str]:
    holder, blocked = record.holder, record.blocked_on
    lease = f"{span(holder.lock_timeout)} at a time"
    if left is not None:
        lease += f"; {span(left)} left, unless it is renewed"
    held = span(snapshot.held_seconds(holder, wall))
    facts = {
        "process": escaped(holder.process),
        "request": show_request(holder.request) or "(not known)",
        "priority": escaped(holder.priority),
        "since": f"{time_of_day(holder.since)}, {held} ago",
        "lease": lease,
    }
    if blocked is not None:
        facts["waits for"] = f"{show(blocked.lock_id)} since {time_of_day(blocked.since)}"
    return [f"  {label:9} {text}" for label, text in facts.items()]


def _queue_lines(record: Record, wall: float, columns: int, paint: Paint) -> list[str]:
    waiters = record.waiters()
    if not waiters:
        return ["  waiting   nobody"]
    rows = [
        [
            str(number),
            escaped(waiter.process),
            show_request(waiter.request),
            escaped(waiter.priority) + (" (aged)" if waiter.aged else ""),
            span(wall - waiter.since),
        ]
        for number, waiter in enumerate(waiters[: snapshot.MOST_WAITERS], 1)
    ]
    lines = table(_QUEUE, rows, columns - 2, paint)
    if len(waiters) > len(rows):
        lines.append(f"… and {len(waiters) - len(rows):,} more")
    process, most = collections.Counter(waiter.process for waiter in waiters).most_common(1)[0]
    # `max_waiting` bounds the waiters of one process.
    together = f"; {most} of them in {escaped(process)}" if most > 1 else ""
    return [f"  waiting   {len(waiters)}{together}", *(f"  {line}" for line in lines)]
