"""End the lease of a lock whose holder hangs: `userlock break ID`."""

from __future__ import annotations

import argparse
import getpass
import socket
from typing import Any

from userlock.admin import snapshot
from userlock.cli.command import (
    FINE,
    NO,
    CommandError,
    Invocation,
    add_lock_id,
    unreachable,
    usable_lock_id,
)
from userlock.cli.holder import describe, look, name_of, seconds_left
from userlock.events import LISTENERS, Broken
from userlock.ids import show
from userlock.lock.lease import printable
from userlock.lock.record import Record
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable

NAME = "break"
SUMMARY = "end the lease of a lock whose holder hangs"
NO_MEANS = "nothing was broken (nobody held it, you said no, or it has changed hands)"
DETAILS = """\
The holder is not stopped. It notices at its next heartbeat, extension or release;
Datastore refuses its stale writes. The first waiter gets the lock. Only the lease that
was shown is broken: if the lock changes hands while you answer, nothing is done. A
broken lease is an event (Broken) and a warning in the log, by default on standard error.

The command asks first. If standard input is not a terminal, it needs --yes. The JSON
document has lock_id, broken, by, why (nothing was broken), and holder, waiting and
waiters as they were before.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_lock_id(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--by", metavar="NAME", help="the operator, for the holder's log (default: USER@HOST)"
    )


def run(options: argparse.Namespace, invocation: Invocation) -> int:
    lock_id = usable_lock_id(options.lock_id)
    console = invocation.console
    if not options.yes and not console.can_ask:
        raise CommandError("cannot ask: standard input is not a terminal. To fix it: pass --yes")
    service = invocation.service()
    by = printable(options.by or _operator())
    record = look(service, lock_id)
    if record is None or record.free:
        return _nothing(invocation, lock_id, record, "nobody holds it")
    if not options.yes and not _agreed(invocation, service, lock_id, record):
        return _nothing(invocation, lock_id, record, "you said no")
    if not _break(service, lock_id, record, by):
        why = "it changed hands or was released meanwhile"
        return _nothing(invocation, lock_id, look(service, lock_id), why)
    if invocation.json:
        console.document({**_facts(invocation, lock_id, record), "broken": True, "by": by})
    else:
        console.say(_report(lock_id, record))
    return FINE


def _agreed(invocation: Invocation, service: LockService, lock_id: str, record: Record) -> bool:
    console = invocation.console
    left = seconds_left(record)
    wall, paint = console.clock.wall(), console.paint_note
    for line in describe(lock_id, record, wall, left, console.columns, paint):
        console.note(line)
    console.note("Break the lock? The holder continues until it notices. [y/N] ", end="")
    answer = console.stdin.readline()
    if not answer.endswith("\n"):
        console.note("")  # the input has ended
    return answer.strip().lower() in ("y", "yes")


def _break(service: LockService, lock_id: str, record: Record, by: str) -> bool:
    """End the lease of the record, and no other. Return whether that was done."""
    try:
        done = service.client.call(lock_id, service.protocol.break_, lock_id, record, by)
    except StoreUnavailable as trouble:
        raise unreachable(trouble.reason) from trouble
    if done:
        # To the process's listeners: the command's own service has none.
        LISTENERS.emit(Broken(lock_id, record.holder.describe(), by))
    return done


def _nothing(invocation: Invocation, lock_id: str, record: Record | None, why: str) -> int:
    if invocation.json:
        document = {**_facts(invocation, lock_id, record), "broken": False, "why": why}
        invocation.console.document(document)
    else:
        invocation.console.say(f"{show(lock_id)}: nothing broken: {why}")
    return NO


def _facts(invocation: Invocation, lock_id: str, record: Record | None) -> dict[str, Any]:
    # Without "held": these are the facts before the lease was broken.
    facts = snapshot.facts(lock_id, record, invocation.console.clock.wall())
    return {name: facts[name] for name in ("lock_id", "holder", "waiting", "waiters")}


def _report(lock_id: str, record: Record) -> str:
    name = show(lock_id)
    if snapshot.is_foreign(record):
        return f"{name}: removed {snapshot.FOREIGN}"
    holder = name_of(record.holder.process, record.holder.request)
    waiters = record.waiters()
    following = "Nobody waits for it."
    if waiters:
        following = f"Next is {name_of(waiters[0].process, waiters[0].request)}."
    return f"{name}: broken; it was held by {holder}. {following}"


def _operator() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
