"""Descriptions of a lock, for people and for programs."""

from __future__ import annotations

from userlock.admin.snapshot import FOREIGN, held_seconds, is_foreign
from userlock.cli.console import Column, shown, span, table, time_of_day
from userlock.lock.record import Record


def who(process: str, request: str) -> str:
    """Return a holder or waiter, in one phrase."""
    return shown(f"{process} {request}".strip()) or "?"


def describe(
    lock_id: str, record: Record | None, wall: float, left: float | None, columns: int
) -> list[str]:
    """Return a lock in lines for people."""
    name = shown(lock_id)
    if record is None or (record.free and record.empty):
        return [f"{name}: nobody holds it, and nobody waits"]
    if record.free:
        why = "was released" if record.released else "ran out"
        if record.broken_by:
            why = f"was broken by {shown(record.broken_by)}"
        lines = [f"{name}: nobody holds it; the last lease {why}, and whoever is next may take it"]
    elif is_foreign(record):
        lines = [
            f"{name}: held by nobody known: {FOREIGN} stands under its key",
            "  Nobody gets the lock while it is there. Is the prefix used by something else?",
            "  `userlock break` removes it.",
        ]
    else:
        lines = [f"{name}: held", *_holder_lines(record, wall, left)]
    return lines + _waiter_lines(record, wall, columns)


def _holder_lines(record: Record, wall: float, left: float | None) -> list[str]:
    holder = record.holder
    lease = f"{holder.lock_timeout:g} s at a time"
    if left is not None:
        lease += f"; {span(left)} left, unless it is renewed"
    pairs = [
        ("process", shown(holder.process)),
        ("request", shown(holder.request) or "(it does not say)"),
        ("priority", shown(holder.priority)),
        ("since", f"{time_of_day(holder.since)}, {span(held_seconds(holder, wall))} ago"),
        ("lease", lease),
    ]
    blocked = record.blocked_on
    if blocked is not None:
        pairs.append(
            ("itself", f"waits for {shown(blocked.lock_id)} since {time_of_day(blocked.since)}")
        )
    return [f"  {label:9} {text}" for label, text in pairs]


def _waiter_lines(record: Record, wall: float, columns: int) -> list[str]:
    waiters = record.waiters()
    if not waiters:
        return ["  waiting   nobody"]
    titles = [
        Column("#", right=True),
        Column("PROCESS", least=10),
        Column("REQUEST", least=10),
        Column("PRIORITY"),
        Column("WAITING", right=True),
    ]
    rows = [
        [
            str(number),
            shown(each.process),
            shown(each.request),
            shown(each.priority) + (" (aged)" if each.aged else ""),
            span(wall - each.since),
        ]
        for number, each in enumerate(waiters, 1)
    ]
    lines = table(titles, rows, columns - 2)
    return [f"  waiting   {len(waiters)}", *(f"  {line}" for line in lines)]
