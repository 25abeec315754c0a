"""`userlock watch`: the locks that somebody waits for, again and again."""

from __future__ import annotations

import argparse
from typing import Any

from userlock.admin import snapshot
from userlock.admin.snapshot import LockState, Snapshot
from userlock.cli import locks
from userlock.cli.command import (
    FINE,
    UNREACHABLE,
    USAGE,
    CommandError,
    Setting,
    plain_reason,
    seconds,
    unreachable,
    usable_lock_id,
)
from userlock.cli.console import Column, Console, shown, span, table, time_of_day
from userlock.lock.store import StoreUnavailable

NAME = "watch"
SUMMARY = "a live table of the locks that somebody waits for"
NO_MEANS = ""
DETAILS = """\
On a terminal the table is drawn in place until Ctrl-C; elsewhere each sample is
appended. With --json there is a line for each sample, with at, listed, held,
complete, note and locks (each as `userlock holder --json` has it); or with error,
while the store does not answer.

Without IDs the store is asked which locks it has, which costs it some work: with
memcached `lru_crawler metadump`, with Redis SCAN over the database, with Datastore
a query. A store keeps an id that it cannot carry (spaces, other alphabets, too long)
as a hash; it is shown as sha256:… and not known here. `userlock holder ID` finds it
by the id.
"""

_COLUMNS = (
    Column("LOCK", least=12),
    Column("HOLDER", least=12),
    Column("HELD", right=True),
    Column("WAITING", right=True),
    Column("LONGEST", right=True),
    Column("NEXT", least=12),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lock_ids", metavar="ID", nargs="*", help="watch these locks only")
    parser.add_argument(
        "--interval",
        type=seconds,
        default=1.0,
        metavar="S",
        help="seconds between samples (default: 1)",
    )
    parser.add_argument("--once", action="store_true", help="one sample, then end")
    parser.add_argument(
        "--all", action="store_true", help="show the locks that nobody waits for as well"
    )


def run(options: argparse.Namespace, setting: Setting) -> int:
    lock_ids = [usable_lock_id(each) for each in options.lock_ids]
    service = setting.service()
    everything: bool = options.all or bool(lock_ids)
    screen = _Screen(setting.console)
    first = True
    while True:
        try:
            sample = snapshot.take(service, lock_ids, setting.console.clock.wall())
        except StoreUnavailable as trouble:
            if first or options.once:
                raise unreachable(trouble.reason) from trouble
            _show_trouble(setting, screen, plain_reason(trouble.reason))
        else:
            if first and sample.note and not sample.locks:
                raise CommandError(
                    f"cannot find out which locks there are: {sample.note}. Name those to "
                    "watch: userlock watch ID …",
                    USAGE,
                )
            _show(setting, screen, sample, everything=everything)
        if options.once:
            return FINE
        first = False
        setting.console.clock.sleep(options.interval)


def _show(setting: Setting, screen: _Screen, sample: Snapshot, *, everything: bool) -> None:
    chosen = sample.select(everything=everything)
    if setting.json:
        setting.console.document(_document(sample, chosen))
        return
    contended = sum(each.contended for each in chosen)
    head = f"{time_of_day(sample.wall)}  {sample.held:,} held, {contended:,} contended"
    _, lines = setting.console.size()
    most = max(lines - 4, 1) if setting.console.live else len(chosen)
    shown_rows = [_row(each, sample.wall) for each in chosen[:most]]
    text = [f"{head}  {setting.url}"]
    if shown_rows:
        text += table(_COLUMNS, shown_rows, setting.console.columns - 1)
    if len(chosen) > most:
        text.append(f"… and {len(chosen) - most:,} more")
    if sample.note:
        text.append(f"not complete: {plain_reason(sample.note)}")
    screen.draw(text)


def _show_trouble(setting: Setting, screen: _Screen, reason: str) -> None:
    wall = setting.console.clock.wall()
    if setting.json:
        setting.console.document(
            {"at": snapshot.timestamp(wall), "error": reason, "exit_code": UNREACHABLE}
        )
        return
    screen.draw([f"{time_of_day(wall)}  the store does not answer: {reason}"])


def _row(seen: LockState, wall: float) -> list[str]:
    record = seen.record
    if record is None:
        return [shown(seen.name), "(free)", "", "0", "", ""]
    waiters = record.waiters()
    following = waiters[0] if waiters else None
    if record.free:
        holder, held = "(free)", ""
    elif snapshot.is_foreign(record):
        holder, held = f"({snapshot.FOREIGN})", ""
    else:
        holder = locks.who(record.holder.process, record.holder.request)
        held = span(snapshot.held_seconds(record.holder, wall))
    return [
        shown(seen.name),
        holder,
        held,
        str(len(waiters)),
        span(seen.longest_wait(wall)) if waiters else "",
        "" if following is None else locks.who(following.process, following.request),
    ]


def _document(sample: Snapshot, chosen: list[LockState]) -> dict[str, Any]:
    return {
        "at": snapshot.timestamp(sample.wall),
        "listed": len(sample.locks),
        "held": sample.held,
        "complete": not sample.note,
        "note": plain_reason(sample.note),
        "locks": [
            snapshot.facts(each.name, each.record, sample.wall, hashed=each.hashed)
            for each in chosen
        ],
    }


class _Screen:
    """Writes each sample over the one before it where that can be done, else after it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._drawn = 0
        self._size = console.size()

    def draw(self, lines: list[str]) -> None:
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
        # In one piece, each line cleared to its end: so that nothing flickers.
        body = "".join(f"{line}\x1b[K\n" for line in lines)
        self._console.stdout.write(f"{begin}{body}\x1b[J")
        self._console.stdout.flush()
