"""Show the locks that have waiters, again and again: `userlock watch`."""

from __future__ import annotations

import argparse

from userlock.admin import snapshot
from userlock.cli.command import (
    FINE,
    UNREACHABLE,
    CommandError,
    Invocation,
    plain_reason,
    seconds,
    unreachable,
    usable_lock_id,
)
from userlock.cli.console import Column, Console, table, time_of_day
from userlock.cli.holder import name_of
from userlock.lock.store import StoreUnavailable
from userlock.words import span

NAME = "watch"
SUMMARY = "show a live table of the locks that have waiters"
NO_MEANS = ""
DETAILS = """\
A terminal redraws the table until Ctrl-C; a pipe gets all samples. With --json each
sample is a line with at, listed, held, complete, note and locks (each as in `userlock
holder --json`), or with error while the store does not answer.

Without IDs the store lists its locks, which costs it some work: memcached by
`lru_crawler metadump`, Redis by SCAN over the database, Datastore by a query. A store
keeps an id that it cannot carry (spaces, other alphabets, too long) as a hash. Such a
lock appears as sha256:…; `userlock holder ID` finds it by its id.
"""

#: The most locks in one sample.
_MOST_ROWS = 1_000

_COLUMNS = (
    Column("LOCK", least=12),
    Column("HOLDER", least=12),
    Column("HELD", right=True),
    Column("WAITING", right=True),
    Column("LONGEST", right=True),
    Column("NEXT", least=12),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lock_ids", metavar="ID", nargs="*", help="watch only these locks")
    parser.add_argument(
        "--interval",
        type=seconds,
        default=1.0,
        metavar="S",
        help="seconds between samples (default: 1)",
    )
    parser.add_argument("--once", action="store_true", help="take one sample")
    parser.add_argument("--all", action="store_true", help="include locks without waiters")


def run(options: argparse.Namespace, invocation: Invocation) -> int:
    lock_ids = [usable_lock_id(each) for each in options.lock_ids]
    service = invocation.service()
    everything: bool = options.all or bool(lock_ids)
    screen = _Screen(invocation.console)
    first = True
    while True:
        try:
            sample = snapshot.take(service, lock_ids, invocation.console.clock.wall())
        except StoreUnavailable as trouble:
            if first or options.once:
                raise unreachable(trouble.reason) from trouble
            _show_outage(invocation, screen, plain_reason(trouble.reason))
        else:
            if first and sample.note and not sample.locks:
                raise CommandError(
                    f"cannot list the locks: {sample.note}. To fix it: name the locks to watch, "
                    "userlock watch ID …"
                )
            _show(invocation, screen, sample, sample.select(everything=everything))
        if options.once:
            return FINE
        first = False
        invocation.console.clock.sleep(options.interval)


def _show(
    invocation: Invocation,
    screen: _Screen,
    sample: snapshot.Snapshot,
    locks: list[snapshot.LockState],
) -> None:
    console = invocation.console
    if invocation.json:
        note = sample.note
        if len(locks) > _MOST_ROWS:
            note = note or f"{len(locks) - _MOST_ROWS:,} more locks are not shown"
        console.document(
            {
                "at": snapshot.timestamp(sample.wall),
                "listed": len(sample.locks),
                "held": sample.held,
                "complete": not note,
                "note": plain_reason(note),
                "locks": [
                    snapshot.facts(lock.name, lock.record, sample.wall, hashed=lock.hashed)
                    for lock in locks[:_MOST_ROWS]
                ],
            }
        )
        return
    contended = sum(lock.contended for lock in locks)
    counts = f"{sample.held:,} held, {contended:,} contended"
    text = [f"{time_of_day(sample.wall)}  {counts}  {invocation.url}"]
    most = max(console.size()[1] - 4, 1) if console.live else _MOST_ROWS
    if locks:
        rows = [_row(lock, sample.wall) for lock in locks[:most]]
        text += table(_COLUMNS, rows, console.columns - 1)
    if len(locks) > most:
        text.append(f"… and {len(locks) - most:,} more")
    if sample.note:
        text.append(f"not complete: {plain_reason(sample.note)}")
    screen.draw(text, heading=1 if locks else None)


def _show_outage(invocation: Invocation, screen: _Screen, reason: str) -> None:
    wall = invocation.console.clock.wall()
    if invocation.json:
        invocation.console.document(
            {"at": snapshot.timestamp(wall), "error": reason, "exit_code": UNREACHABLE}
        )
    else:
        screen.draw([f"{time_of_day(wall)}  the store does not answer: {reason}"])


def _row(lock: snapshot.LockState, wall: float) -> list[str]:
    record = lock.record
    holder, held, waiters = "(free)", "", []
    if record is not None:
        waiters = record.waiters()
        if not record.free and snapshot.is_foreign(record):
            holder = f"({snapshot.FOREIGN})"
        elif not record.free:
            holder = name_of(record.holder.process, record.holder.request)
            held = span(snapshot.held_seconds(record.holder, wall))
    longest = span(lock.longest_wait(wall)) if waiters else ""
    following = name_of(waiters[0].process, waiters[0].request) if waiters else ""
    return [lock.shown, holder, held, str(len(waiters)), longest, following]


class _Screen:
    """Draws each sample over the one before it, or appends it if the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._drawn = 0
        self._size = console.size()

    def draw(self, lines: list[str], heading: int | None = None) -> None:
        """Draw lines, one of which may be the heading of a table."""
        if not self._console.live:
            self._console.say("\n".join(lines))
            return
        size = self._console.size()
        columns, height = size
        begin = ""
        if size != self._size:
            begin, self._drawn = "\x1b[H\x1b[2J", 0  # lines may have been folded
        elif self._drawn:
            begin = f"\x1b[{self._drawn}F"
        self._size = size
        lines = [line[: max(columns - 1, 1)] for line in lines[: max(height - 1, 1)]]
        self._drawn = len(lines)
        if heading is not None and heading < len(lines):
            lines[heading] = self._console.paint(lines[heading], "heading")
        # Written at once, each line cleared to its end, so that nothing flickers.
        body = "".join(f"{line}\x1b[K\n" for line in lines)
        self._console.stdout.write(f"{begin}{body}\x1b[J")
        self._console.stdout.flush()
