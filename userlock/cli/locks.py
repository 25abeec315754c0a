"""Show locks and their queues, and break a lock: `userlock locks|holder|break`."""

from __future__ import annotations

import argparse
import collections
import getpass
import socket
from typing import Any

from userlock.admin import locks as reading
from userlock.admin.rendering import Moment, fields, labelled, local, table, time_of_day
from userlock.cli.command import (
    FINE,
    UNREACHABLE,
    CommandError,
    Invocation,
    argument,
    command,
    plain_reason,
    seconds,
    unreachable,
    usable_lock_id,
)
from userlock.errors import LockServiceUnavailable
from userlock.events import LISTENERS, Broken
from userlock.ids import show
from userlock.lock.lease import printable
from userlock.lock.record import Record
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.words import escaped, span

#: The most locks in one list.
_MOST_ROWS = 1_000

_LOCK_ID = argument(
    "lock_id",
    metavar="ID",
    help="the lock id, exactly as in the program; put -- before an id that begins with a dash",
)

#: The labels of a holder, in their order.
_LABELS = ("process", "request", "priority", "since", "lease", "waits for")


# --- locks --------------------------------------------------------------------------------------


@command(
    argument("lock_ids", metavar="ID", nargs="*", help="show only these locks"),
    argument("--contended", action="store_true", help="only locks with waiters"),
    argument("--follow", action="store_true", help="list them again and again, until Ctrl-C"),
    argument(
        "--interval",
        type=seconds,
        default=1.0,
        metavar="S",
        help="seconds between the lists of --follow (default: 1)",
    ),
)
def locks(options: argparse.Namespace, invocation: Invocation) -> int:
    """List the locks, the longest wait first.

    The JSON document (with --follow one a line) has at, listed, held, complete, note and locks
    (each as in `userlock holder --json`), or with --follow error while the store does not answer.

    Without IDs the store lists its locks, which costs it some work: memcached by
    `lru_crawler metadump`, Redis by SCAN over the database, Datastore by a query. A store
    keeps an id that it cannot carry (spaces, other alphabets, too long) as a hash. Such a
    lock appears as sha256:…; `userlock holder ID` finds it by its id.
    """
    lock_ids = [usable_lock_id(each) for each in options.lock_ids]
    service, console = invocation.service(), invocation.console
    first = True
    while True:
        try:
            sample = reading.take(service, lock_ids, console.clock.wall())
        except StoreUnavailable as trouble:
            if first or not options.follow:
                raise unreachable(trouble.reason) from trouble
            _show_outage(invocation, plain_reason(trouble.reason))
        else:
            if first and sample.note and not sample.locks:
                raise CommandError(
                    f"cannot list the locks: {sample.note}. To fix it: name the locks to show, "
                    "userlock locks ID …"
                )
            found = sample.select(everything=not options.contended)
            _show(invocation, sample, found)
        if not options.follow:
            return FINE
        first = False
        console.clock.sleep(options.interval)


def _show(invocation: Invocation, sample: reading.Snapshot, found: list[reading.LockState]) -> None:
    shown, rest = found[:_MOST_ROWS], len(found) - _MOST_ROWS
    note = sample.note
    if rest > 0:
        note = note or f"{rest:,} more locks are not shown"
    document = {
        "at": Moment(sample.wall),
        "listed": len(sample.locks),
        "held": sample.held,
        "complete": not note,
        "note": plain_reason(note),
        "locks": [
            reading.facts(lock.name, lock.record, sample.wall, hashed=lock.hashed) for lock in shown
        ],
    }
    contended = sum(lock.contended for lock in sample.locks)
    counts = f"{sample.held:,} held, {contended:,} contended"
    lines = [f"{time_of_day(sample.wall)}  {counts}  {invocation.url}"]
    if found:
        lines += table(reading.COLUMNS, [lock.row(sample.wall) for lock in shown])
    if rest > 0:
        lines.append(f"… and {rest:,} more")
    if sample.note:
        lines.append(f"not complete: {plain_reason(sample.note)}")
    invocation.answer(document, lines)


def _show_outage(invocation: Invocation, reason: str) -> None:
    wall = invocation.console.clock.wall()
    document = {"at": Moment(wall), "error": reason, "exit_code": UNREACHABLE}
    invocation.answer(document, [f"{time_of_day(wall)}  the store does not answer: {reason}"])


# --- one lock -----------------------------------------------------------------------------------


@command(_LOCK_ID, no="nobody holds it")
def holder(options: argparse.Namespace, invocation: Invocation) -> int:
    """Show the holder of a lock, its remaining lease, and the queue.

    Times are by the clocks of the holder and the waiters. The remaining lease is by the
    clock of the store. The JSON document has lock_id, held, seconds_left, holder (process,
    request, priority, since, held_seconds, lease_seconds, waits_for, token, foreign),
    waiting (the number of waiters) and waiters (the first 100), in queue order.

    USERLOCK_SHOW_IDS=masked or hashed hides lock ids, and the paths of requests, in the
    output of all commands. Hashes need the key of the app in USERLOCK_ID_KEY.
    """
    lock_id = usable_lock_id(options.lock_id)
    record = _look(invocation.service(), lock_id)
    held = record is not None and not record.free
    console = invocation.console
    facts = reading.facts(lock_id, record, console.clock.wall())
    facts["seconds_left"] = _seconds_left(record) if held else None
    lines = _describe(lock_id, record, console.clock.wall())
    return invocation.answer(facts, lines, no=not held)


def _look(service: LockService, lock_id: str) -> Record | None:
    """Return the lock's record. A store that does not answer ends the command."""
    try:
        return service.look(lock_id)
    except LockServiceUnavailable as error:
        raise unreachable(error.reason) from error


def _seconds_left(record: Record | None) -> float | None:
    """Return the remaining time of the lease, if the store reports it."""
    left = None if record is None else record.stored.seconds_left
    return None if left is None else max(left, 0.0)


def _describe(lock_id: str, record: Record | None, wall: float) -> list[str]:
    """Return a lock in lines for people."""
    name = show(lock_id)
    if record is None or (record.free and record.empty):
        return [f"{name}: not held, no waiters"]
    if record.free:
        why = "was released" if record.released else "ran out"
        if record.broken_by:
            why = f"was broken by {escaped(record.broken_by)}"
        why += ", and the first waiter may take the lock"
        lines = [f"{name}: not held; the last lease {why}"]
    elif reading.is_foreign(record):
        lines = [
            f"{name}: blocked: {reading.FOREIGN} is stored under its key",
            "  Nobody can take the lock. Does another program use the same prefix?",
            "  To fix it: `userlock break` removes the record.",
        ]
    else:
        lines = [f"{name}: held", *_holder_lines(record, wall)]
    waiters = record.waiters()
    if not waiters:
        return [*lines, "  waiting   nobody"]
    process, most = collections.Counter(waiter.process for waiter in waiters).most_common(1)[0]
    # `max_waiting` bounds the waiters of one process.
    together = f"; {most} of them in {escaped(process)}" if most > 1 else ""
    lines.append(f"  waiting   {len(waiters)}{together}")
    queue = table(reading.QUEUE, reading.queue_rows(waiters, wall))
    if len(waiters) > reading.MOST_WAITERS:
        queue.append(f"… and {len(waiters) - reading.MOST_WAITERS:,} more")
    return lines + [f"  {line}" for line in queue]


def _holder_lines(record: Record, wall: float) -> list[str]:
    party, blocked, left = record.holder, record.blocked_on, _seconds_left(record)
    facts = reading.holder_facts(record, wall)
    facts["request"] = facts["request"] or "(not known)"
    facts["lease"] = f"{span(party.lock_timeout)} at a time"
    if left is not None:
        facts["lease"] += f"; {span(left)} left, unless it is renewed"
    if blocked is not None:
        facts["waits_for"] = f"{show(blocked.lock_id)} since {time_of_day(blocked.since)}"
    return fields(labelled(facts, _LABELS, local(wall)), 9)


@command(
    _LOCK_ID,
    argument("--yes", action="store_true", help="do not ask"),
    argument(
        "--by", metavar="NAME", help="the operator, for the holder's log (default: USER@HOST)"
    ),
    no="nothing was broken (nobody held it, you said no, or it has changed hands)",
)
def break_(options: argparse.Namespace, invocation: Invocation) -> int:
    """End the lease of a lock whose holder hangs.

    The holder is not stopped. It notices at its next heartbeat, extension or release;
    Datastore refuses its stale writes. The first waiter gets the lock. Only the lease that
    was shown is broken: if the lock changes hands while you answer, nothing is done. A
    broken lease is an event (Broken) and a warning in the log, by default on standard error.

    The command asks first. If standard input is not a terminal, it needs --yes. The JSON
    document has lock_id, broken, by, why (nothing was broken), and holder, waiting and
    waiters as they were before.
    """
    lock_id = usable_lock_id(options.lock_id)
    console = invocation.console
    if not options.yes and not console.can_ask:
        raise CommandError("cannot ask: standard input is not a terminal. To fix it: pass --yes")
    service = invocation.service()
    by = printable(options.by or _operator())
    record = _look(service, lock_id)
    if record is None or record.free:
        return _nothing(invocation, lock_id, record, "nobody holds it")
    if not options.yes:
        for line in _describe(lock_id, record, console.clock.wall()):
            console.note(line)
        if not console.agrees("Break the lock? The holder continues until it notices."):
            return _nothing(invocation, lock_id, record, "you said no")
    if not _break(service, lock_id, record, by):
        why = "it changed hands or was released meanwhile"
        return _nothing(invocation, lock_id, _look(service, lock_id), why)
    facts = {**_facts(invocation, lock_id, record), "broken": True, "by": by}
    return invocation.answer(facts, [_report(lock_id, record)])


def _break(service: LockService, lock_id: str, record: Record, by: str) -> bool:
    """End the lease of the record, and no other. Return whether that was done."""
    try:
        broken = service.break_lock(lock_id, by=by, token=record.holder.token)
    except LockServiceUnavailable as error:
        raise unreachable(error.reason) from error
    if broken is not None:
        # To the process's listeners: the command's own service has none.
        LISTENERS.emit(Broken(lock_id, broken.describe(), by))
    return broken is not None


def _nothing(invocation: Invocation, lock_id: str, record: Record | None, why: str) -> int:
    facts = {**_facts(invocation, lock_id, record), "broken": False, "why": why}
    return invocation.answer(facts, [f"{show(lock_id)}: nothing broken: {why}"], no=True)


def _facts(invocation: Invocation, lock_id: str, record: Record | None) -> dict[str, Any]:
    # Without "held": these are the facts before the lease was broken.
    facts = reading.facts(lock_id, record, invocation.console.clock.wall())
    return {name: facts[name] for name in ("lock_id", "holder", "waiting", "waiters")}


def _report(lock_id: str, record: Record) -> str:
    if reading.is_foreign(record):
        return f"{show(lock_id)}: removed {reading.FOREIGN}"
    was, waiters = reading.name_of(record.holder), record.waiters()
    following = f"Next is {reading.name_of(waiters[0])}." if waiters else "Nobody waits for it."
    return f"{show(lock_id)}: broken; it was held by {was}. {following}"


def _operator() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
