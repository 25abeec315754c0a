"""`userlock break ID`: end somebody's lease."""

from __future__ import annotations

import argparse
import getpass
import socket
from typing import Any

from userlock.admin import snapshot
from userlock.cli import locks
from userlock.cli.command import (
    FINE,
    NO,
    USAGE,
    CommandError,
    Setting,
    add_lock_id,
    unreachable,
    usable_lock_id,
)
from userlock.cli.console import shown
from userlock.cli.holder import look, seconds_left
from userlock.events import LISTENERS, Broken
from userlock.lock.lease import printable
from userlock.lock.record import Record
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable

NAME = "break"
SUMMARY = "end somebody's lease, when its holder hangs"
NO_MEANS = "nothing was broken (nobody held it, you said no, or it has changed hands)"
DETAILS = """\
The holder is not stopped: it goes on until it finds out, at its next heartbeat,
extension or release; what it writes on outdated reads is refused at the commit.
Whoever waits is next. Only the lease that was shown is broken: if the lock
changes hands while you think, nothing is done. What was broken is an event
(Broken) and a warning in the log: on standard error, unless logging is set up.

Asks first. Where nobody can be asked (standard input is no terminal) it wants --yes.
The JSON document has lock_id, broken, by, why (nothing was broken), and holder and
waiters as they were before.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_lock_id(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--by", metavar="NAME", help="who does it, for the holder's log (default: you, and host)"
    )


def run(options: argparse.Namespace, setting: Setting) -> int:
    lock_id = usable_lock_id(options.lock_id)
    console = setting.console
    if not options.yes and not console.can_ask:
        raise CommandError(
            "nobody can be asked here (standard input is no terminal): say --yes", USAGE
        )
    service = setting.service()
    by = printable(options.by or _me())
    record = look(service, lock_id)
    if record is None or record.free:
        return _nothing(setting, lock_id, record, "nobody holds it")
    if not options.yes and not _agreed(setting, lock_id, record):
        return _nothing(setting, lock_id, record, "as you wish")
    if not _break(service, lock_id, record, by):
        return _nothing(
            setting, lock_id, look(service, lock_id), "it changed hands or was released meanwhile"
        )
    if setting.json:
        console.document({**_facts(setting, lock_id, record), "broken": True, "by": by})
    else:
        console.say(_told(lock_id, record))
    return FINE


def _agreed(setting: Setting, lock_id: str, record: Record) -> bool:
    console = setting.console
    left = seconds_left(record)
    for line in locks.describe(lock_id, record, console.clock.wall(), left, console.columns):
        console.note(line)
    console.note("Break it? Its holder goes on until it notices. [y/N] ", end="")
    answer = console.stdin.readline()
    if not answer.endswith("\n"):
        console.note("")  # the input has ended
    return answer.strip().lower() in ("y", "yes")


def _break(service: LockService, lock_id: str, record: Record, by: str) -> bool:
    """End the lease that the record shows, and no other; whether that was done."""
    try:
        done = service.ask(lock_id, service.leases.break_, lock_id, record, by)
    except StoreUnavailable as trouble:
        raise unreachable(trouble.reason) from trouble
    if done:
        # The process's listeners: the command's own service tells nobody of anything.
        LISTENERS.emit(Broken(lock_id, record.holder.describe(), by))
    return done


def _nothing(setting: Setting, lock_id: str, record: Record | None, why: str) -> int:
    if setting.json:
        document = {**_facts(setting, lock_id, record), "broken": False, "why": why}
        setting.console.document(document)
    else:
        setting.console.say(f"{shown(lock_id)}: nothing broken: {why}")
    return NO


def _facts(setting: Setting, lock_id: str, record: Record | None) -> dict[str, Any]:
    # As it was before: to say "held" of a lock that was just broken would mislead.
    facts = snapshot.facts(lock_id, record, setting.console.clock.wall())
    return {name: facts[name] for name in ("lock_id", "holder", "waiters")}


def _told(lock_id: str, record: Record) -> str:
    name = shown(lock_id)
    if snapshot.is_foreign(record):
        return f"{name}: removed {snapshot.FOREIGN}"
    whose = locks.who(record.holder.process, record.holder.request)
    waiters = record.waiters()
    then = "Nobody waits for it."
    if waiters:
        then = f"Next is {locks.who(waiters[0].process, waiters[0].request)}."
    return f"{name}: broken; it was held by {whose}. {then}"


def _me() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a process without a name, as in some containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
