"""Show locks and their queues, and break a lock: `userlock locks|holder|break`.

The facts about the locks of a store at one moment are those of the inspector too.
"""

from __future__ import annotations

import argparse
import collections
import getpass
import socket
from typing import Any, NamedTuple

import userlock.ids as ids
from userlock.admin.command import (
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
from userlock.admin.health import kind_of
from userlock.admin.rendering import (
    Column,
    Facts,
    Moment,
    fields,
    labelled,
    local,
    table,
    time_of_day,
)
from userlock.errors import LockServiceUnavailable
from userlock.events import LISTENERS, Broken
from userlock.lock.lease import Holder, printable
from userlock.lock.record import Record, Waiter
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.words import escaped, span

_MOST_LOCKS = 10_000
#: How many waiters of a lock are shown.
MOST_WAITERS = 100

FOREIGN = "something that userlock did not write"

#: The columns of a list of locks, and of the queue of one.
COLUMNS = (
    Column("lock", "Lock", "code"),
    Column("holder", "Holder", "code", 40),
    Column("held", "Held", "duration"),
    Column("waiting", "Waiting", "count"),
    Column("longest", "Longest", "duration"),
    Column("next", "Next", "code", 40),
)
QUEUE = (
    Column("number", "#", "count"),
    Column("process", "Process", "text", 40),
    Column("request", "Request", "code", 40),
    Column("priority", "Priority"),
    Column("waiting_seconds", "Waiting", "duration"),
)


class LockState(NamedTuple):
    """A lock, and its record if it has one."""

    name: str  # as `Listed.name`
    record: Record | None
    hashed: bool = False

    @property
    def shown(self) -> str:
        """Return the name for people."""
        return _shown(self.name) if self.hashed else ids.show(self.name)

    @property
    def held(self) -> bool:
        return self.record is not None and not self.record.free

    @property
    def contended(self) -> bool:
        return self.record is not None and not self.record.empty

    def longest_wait(self, wall: float) -> float:
        """Return the longest wait so far, in seconds; -1 if there are no waiters."""
        if self.record is None:
            return -1.0
        return max((wall - each.since for each in self.record.waiters()), default=-1.0)

    def row(self, wall: float) -> Facts:
        """Return the lock as a row of `COLUMNS`."""
        record = self.record
        waiters = [] if record is None else record.waiters()
        row: Facts = {"lock": self.shown, "holder": "(free)", "waiting": len(waiters)}
        if record is not None and not record.free:
            if is_foreign(record):
                row["holder"] = f"({FOREIGN})"
            else:
                row["holder"] = name_of(record.holder)
                row["held"] = held_seconds(record.holder, wall)
        if waiters:
            row["longest"], row["next"] = self.longest_wait(wall), name_of(waiters[0])
        return row


class Snapshot(NamedTuple):
    """The locks of a store at one moment, in seconds since 1970."""

    wall: float
    locks: list[LockState]
    #: Which locks are missing, and why; empty if none are.
    note: str

    @property
    def held(self) -> int:
        return sum(each.held for each in self.locks)

    def select(self, *, everything: bool) -> list[LockState]:
        """Return the locks to show, the longest wait first: contended ones, or all."""
        chosen = [each for each in self.locks if everything or each.contended]
        return sorted(chosen, key=lambda each: (-each.longest_wait(self.wall), each.name))


def take(service: LockService, lock_ids: list[str], wall: float) -> Snapshot:
    """Take a snapshot of the named locks; of all if none are named, which costs the store work.

    Raises:
        StoreUnavailable: the store did not answer.
    """
    if lock_ids:
        return _take_named(service, list(dict.fromkeys(lock_ids)), wall)
    kind = kind_of(service.store)
    if kind is None:
        return Snapshot(wall, [], "this kind of store does not list its locks")
    listed, note = kind.list_locks(service.store, _MOST_LOCKS)
    if len(listed) >= _MOST_LOCKS:
        note = note or f"there are more than {_MOST_LOCKS:,} locks; these are some of them"
    locks = [LockState(each.name, Record(each.stored), each.hashed) for each in listed]
    return Snapshot(wall, locks, note)


def _take_named(service: LockService, lock_ids: list[str], wall: float) -> Snapshot:
    """Take a snapshot without the locks of servers that are down; the note names those locks."""
    locks: list[LockState] = []
    missing: dict[str, LockServiceUnavailable] = {}
    for lock_id in lock_ids:
        try:
            locks.append(LockState(lock_id, service.look(lock_id)))
        except LockServiceUnavailable as error:
            missing[lock_id] = error
    if missing and not locks:
        first = next(iter(missing.values()))
        raise StoreUnavailable(first.reason) from first
    notes = [f"{ids.quoted(lock_id)}: {each.reason}" for lock_id, each in missing.items()]
    return Snapshot(wall, locks, "; ".join(notes))


def is_foreign(record: Record) -> bool:
    """Return whether another program wrote the record. The lock counts as held."""
    return not record.holder.token


def held_seconds(holder: Holder, wall: float) -> float:
    """Return how long it has been held, as far as the clocks agree."""
    return max(wall - holder.since, 0.0)


def name_of(party: Holder | Waiter) -> str:
    """Return a holder or waiter in one phrase, harmless to a terminal."""
    return escaped(f"{party.process} {ids.show_request(party.request)}".strip()) or "?"


# --- as documents -------------------------------------------------------------------------------


def _shown(name: str) -> str:
    """Return the name of a lock that its store names by a hash."""
    return ids.show_digest(name.removeprefix("sha256:"))


def facts(lock_id: str, record: Record | None, wall: float, *, hashed: bool = False) -> Facts:
    """Return a lock as a document, with at most `MOST_WAITERS` of its waiters."""
    held = record is not None and not record.free
    waiters = [] if record is None else record.waiters()
    return {
        "lock_id": None if hashed else ids.exact(lock_id),
        "hash": _shown(lock_id) if hashed else None,
        "held": held,
        "holder": holder_facts(record, wall) if record is not None and held else None,
        "waiting": len(waiters),
        "waiters": [waiter_facts(each, wall) for each in waiters[:MOST_WAITERS]],
    }


def holder_facts(record: Record, wall: float) -> Facts:
    """Return the holder as a document."""
    holder = record.holder
    if is_foreign(record):
        return {"foreign": True, "process": FOREIGN}
    blocked = record.blocked_on
    return {
        "foreign": False,
        "process": holder.process,
        "request": ids.show_request(holder.request),
        "priority": holder.priority,
        "since": Moment(holder.since),
        "held_seconds": held_seconds(holder, wall),
        "lease_seconds": holder.lock_timeout,
        "waits_for": None if blocked is None else ids.exact(blocked.lock_id),
        "token": holder.token,
    }


def queue_rows(waiters: list[Waiter], wall: float) -> list[Facts]:
    """Return waiters as rows of `QUEUE`."""
    return [
        {
            **waiter_facts(each, wall),
            "number": number,
            "priority": f"{each.priority} (aged)" if each.aged else each.priority,
        }
        for number, each in enumerate(waiters[:MOST_WAITERS], 1)
    ]


def waiter_facts(waiter: Waiter, wall: float) -> Facts:
    """Return a waiter as a document."""
    return {
        "process": waiter.process,
        "request": ids.show_request(waiter.request),
        "priority": waiter.priority,
        "since": Moment(waiter.since),
        "waiting_seconds": max(wall - waiter.since, 0.0),
        "aged": waiter.aged,
    }


# --- commands -----------------------------------------------------------------------------------

#: The most locks in one list.
_MOST_ROWS = 1_000

_LOCK_ID = argument(
    "lock_id",
    metavar="ID",
    help="the lock id, exactly as in the program; put -- before an id that begins with a dash",
)

#: The labels of a holder, in their order.
_LABELS = ("process", "request", "priority", "since", "lease", "waits for")


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
            sample = take(service, lock_ids, console.clock.wall())
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


def _show(invocation: Invocation, sample: Snapshot, found: list[LockState]) -> None:
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
        "locks": [facts(lock.name, lock.record, sample.wall, hashed=lock.hashed) for lock in shown],
    }
    contended = sum(lock.contended for lock in sample.locks)
    counts = f"{sample.held:,} held, {contended:,} contended"
    lines = [f"{time_of_day(sample.wall)}  {counts}  {invocation.url}"]
    if found:
        lines += table(COLUMNS, [lock.row(sample.wall) for lock in shown])
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
    found = facts(lock_id, record, console.clock.wall())
    found["seconds_left"] = _seconds_left(record) if held else None
    lines = _describe(lock_id, record, console.clock.wall())
    return invocation.answer(found, lines, no=not held)


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
    name = ids.show(lock_id)
    if record is None or (record.free and record.empty):
        return [f"{name}: not held, no waiters"]
    if record.free:
        why = "was released" if record.released else "ran out"
        if record.broken_by:
            why = f"was broken by {escaped(record.broken_by)}"
        why += ", and the first waiter may take the lock"
        lines = [f"{name}: not held; the last lease {why}"]
    elif is_foreign(record):
        lines = [
            f"{name}: blocked: {FOREIGN} is stored under its key",
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
    queue = table(QUEUE, queue_rows(waiters, wall))
    if len(waiters) > MOST_WAITERS:
        queue.append(f"… and {len(waiters) - MOST_WAITERS:,} more")
    return lines + [f"  {line}" for line in queue]


def _holder_lines(record: Record, wall: float) -> list[str]:
    party, blocked, left = record.holder, record.blocked_on, _seconds_left(record)
    facts = holder_facts(record, wall)
    facts["request"] = facts["request"] or "(not known)"
    facts["lease"] = f"{span(party.lock_timeout)} at a time"
    if left is not None:
        facts["lease"] += f"; {span(left)} left, unless it is renewed"
    if blocked is not None:
        facts["waits_for"] = f"{ids.show(blocked.lock_id)} since {time_of_day(blocked.since)}"
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
    return invocation.answer(facts, [f"{ids.show(lock_id)}: nothing broken: {why}"], no=True)


def _facts(invocation: Invocation, lock_id: str, record: Record | None) -> dict[str, Any]:
    # Without "held": these are the facts before the lease was broken.
    found = facts(lock_id, record, invocation.console.clock.wall())
    return {name: found[name] for name in ("lock_id", "holder", "waiting", "waiters")}


def _report(lock_id: str, record: Record) -> str:
    if is_foreign(record):
        return f"{ids.show(lock_id)}: removed {FOREIGN}"
    was, waiters = name_of(record.holder), record.waiters()
    following = f"Next is {name_of(waiters[0])}." if waiters else "Nobody waits for it."
    return f"{ids.show(lock_id)}: broken; it was held by {was}. {following}"


def _operator() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
