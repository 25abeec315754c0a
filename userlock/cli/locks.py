"""How a lock is told of, to people and to programs."""

from __future__ import annotations

from typing import Any

from userlock.cli.console import Column, shown, span, table, time_of_day, timestamp
from userlock.lock.lease import Holder
from userlock.lock.record import Record, Waiter

FOREIGN = "something that userlock did not write"


def is_foreign(record: Record) -> bool:
    """Whether others wrote what stands under the lock's key. It counts as held."""
    return not record.holder.token


def held_seconds(holder: Holder, wall: float) -> float:
    """For how long it has been held, as far as the clocks agree."""
    return max(wall - holder.since, 0.0)


def who(process: str, request: str) -> str:
    """A holder or waiter, in one phrase."""
    return shown(f"{process} {request}".strip()) or "?"


def facts(
    lock_id: str, record: Record | None, wall: float, *, hashed: bool = False
) -> dict[str, Any]:
    """A lock as a document."""
    held = record is not None and not record.free
    document: dict[str, Any] = {
        "lock_id": None if hashed else lock_id,
        "hash": lock_id if hashed else None,
        "held": held,
        "holder": None,
        "waiters": [],
    }
    if record is None:
        return document
    if held:
        document["holder"] = holder_facts(record, wall)
    document["waiters"] = [waiter_facts(each, wall) for each in record.waiters()]
    return document


def holder_facts(record: Record, wall: float) -> dict[str, Any]:
    """Who holds it."""
    holder = record.holder
    if is_foreign(record):
        return {"foreign": True, "process": FOREIGN}
    blocked = record.blocked_on
    return {
        "foreign": False,
        "process": holder.process,
        "request": holder.request,
        "priority": holder.priority,
        "since": timestamp(holder.since),
        "held_seconds": held_seconds(holder, wall),
        "lease_seconds": holder.lock_timeout,
        "waits_for": None if blocked is None else blocked.lock_id,
        "token": holder.token,
    }


def waiter_facts(waiter: Waiter, wall: float) -> dict[str, Any]:
    """One who waits."""
    return {
        "process": waiter.process,
        "request": waiter.request,
        "priority": waiter.priority,
        "since": timestamp(waiter.since),
        "waiting_seconds": max(wall - waiter.since, 0.0),
        "aged": waiter.aged,
    }


def describe(
    lock_id: str, record: Record | None, wall: float, left: float | None, columns: int
) -> list[str]:
    """A lock in lines for people."""
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
