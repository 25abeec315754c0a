"""Show locks and their queues, and break a lock: `userlock locks|holder|break`.

The facts about the locks of a store at one moment are those of the inspector too.
"""

from __future__ import annotations

import argparse
import collections
import getpass
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import userlock.ids as ids
from userlock.admin import command as cli
from userlock.admin import rendering
from userlock.admin.command import CommandError, Invocation, plain_reason, usable_lock_id
from userlock.admin.health import kind_of
from userlock.admin.rendering import Column, Facts, Moment, time_of_day
from userlock.errors import LockServiceUnavailable
from userlock.events import LISTENERS, Broken
from userlock.lock.lease import Holder, printable
from userlock.lock.record import Record, Waiter
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.words import escaped, span

_S = TypeVar("_S")
#: The most locks in a listing.
_MOST_LOCKS = 10_000
#: The most bytes of all records in one listing. Parsed, they take a multiple of it.
MOST_LISTED_BYTES = 8 << 20
NO_ROOM = f"the records have more than {MOST_LISTED_BYTES >> 20} MB; some are missing"

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
    name: str  # its id; where the store keeps only its hash, the hash
    record: Record | None
    hashed: bool = False

    @property
    def shown(self) -> str:
        return ids.show_digest(self.name) if self.hashed else ids.show(self.name)

    @property
    def held(self) -> bool:
        return self.record is not None and not self.record.free

    @property
    def contended(self) -> bool:
        return self.record is not None and not self.record.empty

    @property
    def waiters(self) -> list[Waiter]:
        return [] if self.record is None else self.record.waiters()

    def longest_wait(self, wall: float) -> float:
        """Return the longest wait so far, in seconds; -1 if there are no waiters."""
        return max((wall - each.since for each in self.waiters), default=-1.0)

    def facts(self, wall: float) -> Facts:
        waiters, record = self.waiters, self.record
        return {
            "lock_id": None if self.hashed else ids.exact(self.name),
            "hash": self.shown if self.hashed else None,
            "held": self.held,
            "holder": None if record is None or record.free else holder_facts(record, wall),
            "waiting": len(waiters),
            "waiters": [waiter_facts(each, wall) for each in waiters],
        }

    def row(self, wall: float) -> Facts:
        waiters, record = self.waiters, self.record
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


class Listing(NamedTuple):
    """The locks of a store at one moment, each once, in no order."""

    locks: list[LockState]
    note: str = ""  # which are missing, and why

    @classmethod
    def within_room(cls, found: Iterable[LockState], note: str = "") -> Listing:
        """Take the first locks for which there is room: forged records must not fill the memory."""
        locks: list[LockState] = []
        left = MOST_LISTED_BYTES
        for each in found:
            left -= 0 if each.record is None else len(each.record.stored.record)
            if left < 0:
                return cls(locks, NO_ROOM)
            locks.append(each)
        return cls(locks, note)

    @classmethod
    def of_servers(
        cls, servers: Mapping[str, _S], list_one: Callable[[_S, int], Listing], limit: int
    ) -> Listing:
        """List the locks of servers, without those that are down; raise if nothing was found."""
        locks: list[LockState] = []
        notes: list[str] = []
        down: StoreUnavailable | None = None
        for name, server in servers.items():
            if len(locks) >= limit:
                break
            try:
                one = list_one(server, limit - len(locks))
            except StoreUnavailable as trouble:
                down = trouble
                notes.append(trouble.reason)
                continue
            locks += one.locks
            if one.note:
                notes.append(f"{name}: {one.note}")
        if down is not None and not locks:
            raise down
        return cls(locks, "; ".join(notes))

    def select(self, wall: float, *, everything: bool) -> list[LockState]:
        """Return the locks to show, the longest wait first: contended ones, or all."""
        chosen = [each for each in self.locks if everything or each.contended]
        return sorted(chosen, key=lambda each: (-each.longest_wait(wall), each.name))


def take(service: LockService, lock_ids: list[str]) -> Listing:
    """List the named locks; all if none are named, which costs the store work."""
    if lock_ids:
        return _take_named(service, list(dict.fromkeys(lock_ids)))
    kind = kind_of(service.store)
    if kind is None:
        return Listing([], "this kind of store does not list its locks")
    found: Listing = kind.list_locks(service.store, _MOST_LOCKS)
    if len(found.locks) >= _MOST_LOCKS and not found.note:
        note = f"the list ends after {_MOST_LOCKS:,} locks; there may be more"
        return found._replace(note=note)
    return found


def _take_named(service: LockService, lock_ids: list[str]) -> Listing:
    """List locks without those of servers that are down; the note names these."""
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
    return Listing(locks, "; ".join(notes))


def is_foreign(record: Record) -> bool:
    """Return whether another program wrote the record. The lock counts as held."""
    return not record.holder.token


def held_seconds(holder: Holder, wall: float) -> float:
    return max(wall - holder.since, 0.0)


def name_of(party: Holder | Waiter) -> str:
    """Return a holder or waiter in one phrase, harmless to a terminal."""
    return escaped(f"{party.process} {ids.show_request(party.request)}".strip()) or "?"


def holder_facts(record: Record, wall: float) -> Facts:
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


def waiter_facts(waiter: Waiter, wall: float) -> Facts:
    return {
        "process": waiter.process,
        "request": ids.show_request(waiter.request),
        "priority": waiter.priority,
        "since": Moment(waiter.since),
        "waiting_seconds": max(wall - waiter.since, 0.0),
        "aged": waiter.aged,
    }


_INTERVAL = "seconds between the lists of --follow (default: 1)"
_ID = "the lock id, exactly as in the program; put -- before an id that begins with a dash"
_LOCK_ID = cli.argument("lock_id", metavar="ID", help=_ID)
_LABELS = ("process", "request", "priority", "since", "lease", "waits for")


@cli.command(
    cli.argument("lock_ids", metavar="ID", nargs="*", help="show only these locks"),
    cli.flag("--contended", "only locks with waiters"),
    cli.flag("--follow", "list them again and again, until Ctrl-C"),
    cli.option("--interval", "S", _INTERVAL, cli.seconds, 1.0),
)
def locks(options: argparse.Namespace, invocation: Invocation) -> int:
    """List the locks, the longest wait first.

    The JSON document (with --follow one a line) has at, listed, held, complete, note
    and locks (each as in `userlock holder --json`), or with --follow error while the store does
    not answer.

    Without IDs the store lists its locks, which costs it some work: memcached by
    `lru_crawler metadump`, Redis by SCAN over the database, Datastore by a query. A store
    keeps an id that it cannot carry (spaces, other alphabets, too long) as a hash. Such a
    lock appears as sha256:…; `userlock holder ID` finds it by its id.
    """
    lock_ids = [usable_lock_id(each) for each in options.lock_ids]
    service, console = invocation.service(), invocation.console
    first = True
    while True:
        wall = console.clock.wall()
        try:
            found = take(service, lock_ids)
        except StoreUnavailable as trouble:
            if first or not options.follow:
                raise
            reason = plain_reason(trouble.reason)
            document = {"at": Moment(wall), "error": reason, "exit_code": cli.UNREACHABLE}
            line = f"{time_of_day(wall)}  the store does not answer: {reason}"
            invocation.answer(document, line)
        else:
            if first and found.note and not found.locks:
                fix = "To fix it: name the locks to show, userlock locks ID …"
                raise CommandError(f"cannot list the locks: {found.note}. {fix}")
            _show(options, invocation, found, wall)
        first = False
        if not options.follow:
            return cli.FINE
        console.clock.sleep(options.interval)


def _show(options: argparse.Namespace, invocation: Invocation, found: Listing, wall: float) -> None:
    chosen = found.select(wall, everything=not options.contended)
    held = sum(lock.held for lock in found.locks)
    document = {
        "at": Moment(wall),
        "listed": len(found.locks),
        "held": held,
        "complete": not found.note,
        "note": plain_reason(found.note),
        "locks": [lock.facts(wall) for lock in chosen],
    }
    contended = sum(lock.contended for lock in found.locks)
    counts = f"{held:,} held, {contended:,} contended"
    lines = [f"{time_of_day(wall)}  {counts}  {invocation.url}"]
    if chosen:
        lines += rendering.table(COLUMNS, [lock.row(wall) for lock in chosen])
    if found.note:
        lines.append(f"not complete: {plain_reason(found.note)}")
    invocation.answer(document, *lines)


@cli.command(_LOCK_ID, no="nobody holds it")
def holder(options: argparse.Namespace, invocation: Invocation) -> int:
    """Show the holder of a lock, its remaining lease, and the queue.

    Times are by the clocks of the holder and the waiters. The remaining lease is by the
    clock of the store. The JSON document has lock_id, held, seconds_left, holder (process,
    request, priority, since, held_seconds, lease_seconds, waits_for, token, foreign),
    waiting (the number of waiters) and waiters, in queue order.

    USERLOCK_SHOW_IDS=masked or hashed hides lock ids, and the paths of requests, in the
    output of all commands. Hashes need the key of the app in USERLOCK_ID_KEY.
    """
    lock_id = usable_lock_id(options.lock_id)
    record, wall = invocation.service().look(lock_id), invocation.console.clock.wall()
    found = LockState(lock_id, record).facts(wall)
    left = None if record is None else record.stored.seconds_left
    found["seconds_left"] = None if left is None or not found["held"] else max(left, 0.0)
    return invocation.answer(found, *_describe(lock_id, record, wall), no=not found["held"])


def _describe(lock_id: str, record: Record | None, wall: float) -> list[str]:
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
        party, blocked, left = record.holder, record.blocked_on, record.stored.seconds_left
        facts = holder_facts(record, wall)
        facts["request"] = facts["request"] or "(not known)"
        facts["lease"] = f"{span(party.lock_timeout)} at a time"
        if left is not None:
            facts["lease"] += f"; {span(max(left, 0.0))} left, unless it is renewed"
        if blocked is not None:
            facts["waits_for"] = f"{ids.show(blocked.lock_id)} since {time_of_day(blocked.since)}"
        labelled = rendering.labelled(facts, _LABELS, rendering.local(wall))
        lines = [f"{name}: held", *rendering.fields(labelled, 9)]
    waiters = record.waiters()
    if not waiters:
        return [*lines, "  waiting   nobody"]
    process, most = collections.Counter(waiter.process for waiter in waiters).most_common(1)[0]
    # `max_waiting` bounds the waiters of one process.
    together = f"; {most} of them in {escaped(process)}" if most > 1 else ""
    lines.append(f"  waiting   {len(waiters)}{together}")
    rows = [waiter_facts(each, wall) for each in waiters]
    for number, each in enumerate(rows, 1):
        each["number"] = number
        each["priority"] += " (aged)" if each["aged"] else ""
    return lines + [f"  {line}" for line in rendering.table(QUEUE, rows)]


@cli.command(
    _LOCK_ID,
    cli.flag("--yes", "do not ask"),
    cli.option("--by", "NAME", "the operator, for the holder's log (default: USER@HOST)"),
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
    if not options.yes:
        console.check_can_ask("--yes")
    service = invocation.service()
    by = printable(options.by or _operator())
    record = service.look(lock_id)
    why = "" if record is not None and not record.free else "nobody holds it"
    if not why and not options.yes:
        for line in _describe(lock_id, record, console.clock.wall()):
            console.note(line)
        if not console.agrees("Break the lock? The holder continues until it notices."):
            why = "you said no"
    if record is not None and not why:
        broken = service.break_lock(lock_id, by=by, token=record.holder.token)
        if broken is not None:
            # To the process's listeners: the command's own service has none.
            LISTENERS.emit(Broken(lock_id, broken.describe(), by))
        else:
            why = "it changed hands or was released meanwhile"
            record = service.look(lock_id)
    # Without "held": these are the facts before the lease was broken.
    found = LockState(lock_id, record).facts(console.clock.wall())
    document = {name: found[name] for name in ("lock_id", "holder", "waiting", "waiters")}
    if record is None or why:
        text = f"{ids.show(lock_id)}: nothing broken: {why}"
        return invocation.answer({**document, "broken": False, "why": why}, text, no=True)
    if is_foreign(record):
        text = f"{ids.show(lock_id)}: removed {FOREIGN}"
    else:
        waiters = record.waiters()
        following = f"Next is {name_of(waiters[0])}." if waiters else "Nobody waits for it."
        text = f"{ids.show(lock_id)}: broken; it was held by {name_of(record.holder)}. {following}"
    return invocation.answer({**document, "broken": True, "by": by}, text)


def _operator() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
