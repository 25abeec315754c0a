"""`userlock holder ID`: who holds a lock, and who waits."""

from __future__ import annotations

import argparse

from userlock.admin import snapshot
from userlock.cli import locks
from userlock.cli.command import FINE, NO, Setting, add_lock_id, unreachable, usable_lock_id
from userlock.errors import LockServiceUnavailable
from userlock.lock.record import Record
from userlock.lock.service import LockService

NAME = "holder"
SUMMARY = "who holds a lock, since when, how long still, and who waits"
NO_MEANS = "nobody holds it"
DETAILS = """\
Times are by the clocks of those who hold and wait; how long a lease has still to
run is the store's word. The JSON document has lock_id, held, seconds_left, holder
(process, request, priority, since, held_seconds, lease_seconds, waits_for, token,
foreign) and waiters, in the order in which they will be served.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_lock_id(parser)


def run(options: argparse.Namespace, setting: Setting) -> int:
    lock_id = usable_lock_id(options.lock_id)
    service = setting.service()
    record = look(service, lock_id)
    held = record is not None and not record.free
    left = seconds_left(record) if held else None
    console = setting.console
    wall = console.clock.wall()
    if setting.json:
        console.document({**snapshot.facts(lock_id, record, wall), "seconds_left": left})
    else:
        console.say("\n".join(locks.describe(lock_id, record, wall, left, console.columns)))
    return FINE if held else NO


def look(service: LockService, lock_id: str) -> Record | None:
    """Return the lock's record; what is wrong with the store ends the command."""
    try:
        return service.look(lock_id)
    except LockServiceUnavailable as error:
        raise unreachable(error.reason) from error


def seconds_left(record: Record | None) -> float | None:
    """Return the remaining time of the lease, if the store reports it."""
    left = None if record is None else record.stored.seconds_left
    return None if left is None else max(left, 0.0)
