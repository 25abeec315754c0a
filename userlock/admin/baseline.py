"""Write or check a baseline of put sites: `userlock baseline write|check LOG …`."""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from userlock import sites
from userlock.admin.command import CommandError, Invocation, argument, command, flag, option
from userlock.sites import FACTS_KEY, Baseline, Project, Sighting, Site
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
    option("--file", "FILE", "the baseline (default: %(default)s)", str, sites.DEFAULT_NAME),
    option("--root", "DIR", "the project's folder, for the names of files (default: .)", str, "."),
    flag("--add", "write: keep the lines that are not in the logs"),
    flag("--strict", "check: a stale line is an error too"),
    no="a put site is new or unreadable, or (with --strict) a line is stale",
)
def baseline(options: argparse.Namespace, invocation: Invocation) -> int:
    """Write or check a file of put sites that are known not to hold their lock.

    LOG is a report of a test run (pytest --userlock-report=FILE) or a structured log of
    production, written with enforcement="log". It consists of JSON lines, or of one JSON
    array as `gcloud logging read --format=json` prints it; - is standard input. `write`
    replaces the file by the sites in the logs; with --add, or if a record of a site cannot
    be read, it keeps the other lines too.
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
    except sites.BaselineError as error:
        raise CommandError(str(error)) from error
    seen, unreadable = _seen(options, invocation)
    if unreadable:
        records = counted(unreadable, "unreadable record")
        invocation.console.note(f"userlock baseline: {records} of put sites left out")
    if not seen:
        invocation.console.note("userlock baseline: no put site in the logs")
    document: dict[str, Any] = {"file": str(path), "known": len(known), "seen": len(seen)}
    if not check:
        try:
            update = known.rewrite(path, seen, keep=options.add or unreadable > 0)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror or error}") from error
        document |= {
            "known": update.known,
            "added": list(map(str, update.added)),
            "removed": list(map(str, update.removed)),
        }
        return invocation.answer(document, *map(escaped, update.lines(str(path))))
    new, stale = known.compare(seen)
    places = {site: {name: seen[site].facts.get(name) for name in ("put", "read")} for site in new}
    document["new"] = [
        {"site": str(site), **places[site], "times": seen[site].times} for site in new
    ]
    document["stale"] = list(map(str, stale))
    lines = [line for site in new for line in (f"new    {site}", *_places(seen[site]))]
    lines += [f"stale  {site}" for site in stale]
    lines.append(
        f"{path}: {counted(len(known), 'put site')} known, "
        f"{len(seen)} seen; {len(new)} new, {len(stale)} stale"
    )
    wrong = bool(new or unreadable or (options.strict and stale))
    return invocation.answer(document, *map(escaped, lines), no=wrong)


def _places(sighting: Sighting) -> list[str]:
    places = [
        f"{action} at {place.get('file')}:{place.get('line')}"
        for action in ("read", "put")
        if (place := sighting.facts.get(action))
    ]
    return [f"       {', '.join(places)}"] if places else []


def _seen(options: argparse.Namespace, invocation: Invocation) -> tuple[dict[Site, Sighting], int]:
    """Return the put sites in the logs, and how many records of some cannot be read."""
    project = Project(Path(options.root).resolve())
    seen: dict[Site, Sighting] = {}
    unreadable = 0
    for name in options.logs:
        for document in _documents(_lines(name, invocation)):
            for facts, count in _find(document, _DEEPEST):
                try:
                    site = project.site_of(facts)
                except ValueError:
                    unreadable += 1
                    continue
                if site.is_mistake:
                    seen.setdefault(site, Sighting(facts)).times += count
    return seen, unreadable


def _lines(name: str, invocation: Invocation) -> Iterator[str]:
    if name == "-":
        yield from invocation.console.stdin
        return
    try:
        with Path(name).open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from error


def _documents(lines: Iterator[str]) -> Iterator[Any]:
    """Give the document of each line, or the one array that all lines are."""
    first = next((line for line in lines if line.strip()), "")
    lines = itertools.chain([first], lines)
    if re.match(r"\s*\[\s*(\{|$)", first):
        texts = iter(["".join(lines)])
    else:  # one of them may begin like an array
        texts = (line for line in lines if FACTS_KEY in line)
    for text in texts:
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            yield {FACTS_KEY: None}  # cut off, for instance: counts as unreadable


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
