"""Write or check a baseline of put sites: `userlock baseline write|check LOG …`."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from userlock.admin.command import (
    CommandError,
    Console,
    Invocation,
    argument,
    command,
    flag,
    option,
)
from userlock.sites import (
    DEFAULT_NAME,
    FACTS_KEY,
    Baseline,
    BaselineError,
    Project,
    Sighting,
    Site,
)
from userlock.words import counted, escaped

#: The deepest site in a record. Logging services nest records: Cloud Logging in `jsonPayload`.
_DEEPEST = 6


@command(
    argument(
        "action",
        metavar="write|check",
        choices=("write", "check"),
        help="write the file from the logs, or compare it with them",
    ),
    argument("logs", metavar="LOG", nargs="+", help="a log or report with put sites"),
    option("--file", "FILE", "the baseline (default: %(default)s)", str, DEFAULT_NAME),
    option("--root", "DIR", "the project's folder, for the names of files (default: .)", str, "."),
    flag("--add", "write: keep the lines that are not in the logs"),
    flag("--strict", "check: a stale line is an error too"),
    no="a put site is not in the baseline, or (with --strict) a line of it is stale",
)
def baseline(options: argparse.Namespace, invocation: Invocation) -> int:
    """Write or check a file of put sites that are known not to hold their lock.

    LOG is a report of a test run (pytest --userlock-report=FILE) or a structured log of
    production, written with enforcement="log". It consists of JSON lines, or of one JSON
    array as `gcloud logging read --format=json` prints it; - is standard input. `write`
    replaces the file by the sites in the logs; with --add, it keeps the other lines too.
    `check` shows the sites that are new, and the lines that are stale: not in the logs. The
    JSON document has file, known, seen, new and stale (for `check`) or added and removed
    (for `write`); a new site has site, put, read and times.
    """
    check = options.action == "check"
    if options.add and check:
        raise CommandError("--add is an option of write")
    if options.strict and not check:
        raise CommandError("--strict is an option of check")
    path = Path(options.file)
    try:
        known = Baseline.read(path, missing_ok=not check)
    except BaselineError as error:
        raise CommandError(str(error)) from error
    log = SiteLog(Project(Path(options.root).resolve()))
    for name in options.logs:
        log.read(name, invocation.console)
    if log.unreadable:
        records = counted(log.unreadable, "unreadable record")
        invocation.console.note(f"userlock baseline: {records} of put sites left out")
    if not log.sites:
        invocation.console.note("userlock baseline: no put site in the logs")
    if check:
        return _check(path, known, log, invocation, strict=options.strict)
    return _write(path, known, log, invocation, keep=options.add)


def _write(path: Path, known: Baseline, log: SiteLog, invocation: Invocation, *, keep: bool) -> int:
    try:
        update = known.rewrite(path, log.sites, keep=keep)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    document = {
        "file": str(path),
        "known": update.known,
        "seen": len(log.sites),
        "added": list(map(str, update.added)),
        "removed": list(map(str, update.removed)),
    }
    return invocation.answer(document, *map(escaped, update.lines(str(path))))


def _check(
    path: Path, known: Baseline, log: SiteLog, invocation: Invocation, *, strict: bool
) -> int:
    new, stale = known.compare(log.sites)
    document = {
        "file": str(path),
        "known": len(known),
        "seen": len(log.sites),
        "new": [
            {
                "site": str(site),
                "put": log.sites[site].facts.get("put"),
                "read": log.sites[site].facts.get("read"),
                "times": log.sites[site].times,
            }
            for site in new
        ],
        "stale": list(map(str, stale)),
    }
    lines = [line for site in new for line in (f"new    {site}", *_places(log.sites[site]))]
    lines += [f"stale  {site}" for site in stale]
    lines.append(
        f"{path}: {counted(len(known), 'put site')} known, "
        f"{len(log.sites)} seen; {len(new)} new, {len(stale)} stale"
    )
    wrong = bool(new or (strict and stale))
    return invocation.answer(document, *map(escaped, lines), no=wrong)


def _places(sighting: Sighting) -> list[str]:
    """Return a line with the call sites of one violation, if they are known."""
    places = [
        f"{action} at {place.get('file')}:{place.get('line')}"
        for action in ("read", "put")
        if (place := sighting.facts.get(action))
    ]
    return [f"       {', '.join(places)}"] if places else []


# --- logs and reports ---------------------------------------------------------------------------


class SiteLog:
    """The put sites in logs and reports of a project.

    `unreadable` counts the records that should have a site but cannot be read.
    """

    def __init__(self, project: Project) -> None:
        self.sites: dict[Site, Sighting] = {}
        self.unreadable = 0
        self._project = project

    def read(self, name: str, console: Console) -> None:
        """Add the sites in a file, or those in standard input if the name is `-`."""
        if name == "-":
            self._add(console.stdin)
            return
        try:
            with Path(name).open(encoding="utf-8", errors="replace") as file:
                self._add(file)
        except OSError as error:
            raise CommandError(f"{name}: {error.strerror or error}") from error

    def _add(self, lines: Iterable[str]) -> None:
        for document in self._documents(lines):
            for facts, count in _find(document, _DEEPEST):
                try:
                    site = self._project.site_of(facts)
                except ValueError:
                    self.unreadable += 1
                    continue
                if site.is_mistake:
                    self.sites.setdefault(site, Sighting(facts)).times += count

    def _documents(self, lines: Iterable[str]) -> Iterator[Any]:
        """Give the document of each line, or the one array that all lines are."""
        lines = iter(lines)
        first = next((line for line in lines if line.strip()), "")
        lines = itertools.chain([first], lines)
        if first.lstrip().startswith("["):
            lines = list(lines)
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads("".join(lines))
                return
        for line in lines:  # one of them may begin like an array
            if FACTS_KEY in line:
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    self.unreadable += 1


def _find(document: Any, depth: int) -> Iterator[tuple[Any, int]]:
    """Give the facts of each site in a document, with its count."""
    if depth < 0:
        return
    if isinstance(document, dict) and FACTS_KEY in document:
        count = document.get("count")
        yield document[FACTS_KEY], count if isinstance(count, int) and count > 0 else 1
    elif isinstance(document, dict | list):
        for each in document.values() if isinstance(document, dict) else document:
            yield from _find(each, depth - 1)
