"""`userlock baseline write|check LOG …`: the put sites that are known, and those that are not."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from userlock.baseline import DEFAULT_NAME, Baseline, BaselineError
from userlock.cli.command import FINE, NO, USAGE, CommandError, Setting
from userlock.cli.console import shown
from userlock.cli.site_log import Sighting, Sightings
from userlock.sites import Project, Site
from userlock.words import counted

NAME = "baseline"
SUMMARY = "keeps a file of put sites that are known not to be covered by their lock"
NO_MEANS = "a put site is not in the baseline, or (with --strict) a line of it is stale"
DETAILS = """\
LOG is a report of a test run (pytest --userlock-report=FILE) or a structured log of
production, where enforcement="log" wrote it: JSON lines, or a JSON array, as `gcloud
logging read --format=json` gives it; - is standard input. `write` makes the file anew of
what is in the logs; with --add, what it had stays. `check` says what is new, and which
lines of the file are stale: not seen in the logs. The JSON document has file, known,
seen, new and stale (for `check`) or added and removed (for `write`); a new site has
site, put, read and times.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        metavar="write|check",
        choices=("write", "check"),
        help="make the file of what is in the logs, or hold it against them",
    )
    parser.add_argument("logs", metavar="LOG", nargs="+", help="where to find put sites")
    parser.add_argument(
        "--file", metavar="FILE", default=DEFAULT_NAME, help="the baseline (default: %(default)s)"
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        default=".",
        help="the project's folder, from which files are named (default: this one)",
    )
    parser.add_argument(
        "--add", action="store_true", help="write: keep the lines that were not seen"
    )
    parser.add_argument(
        "--strict", action="store_true", help="check: a stale line is an error as well"
    )


def run(options: argparse.Namespace, setting: Setting) -> int:
    if options.add and options.action == "check":
        raise CommandError("--add goes with write", USAGE)
    if options.strict and options.action == "write":
        raise CommandError("--strict goes with check", USAGE)
    path = Path(options.file)
    baseline = _read(path, needed=options.action == "check")
    sightings = Sightings(Project(Path(options.root).resolve()))
    for name in options.logs:
        sightings.read(name, setting.console)
    _note_troubles(sightings, setting)
    if options.action == "write":
        return _write(path, baseline, sightings, setting, keep=options.add)
    return _check(path, baseline, sightings, setting, strict=options.strict)


def _read(path: Path, *, needed: bool) -> Baseline:
    try:
        return Baseline.read(path)
    except FileNotFoundError:
        if needed:
            raise CommandError(
                f"there is no {path}: make it with `userlock baseline write`, or name it with "
                f"--file",
                USAGE,
            ) from None
        return Baseline()
    except BaselineError as error:
        raise CommandError(str(error), USAGE) from error


def _note_troubles(sightings: Sightings, setting: Setting) -> None:
    if sightings.unreadable:
        setting.console.note(
            f"userlock baseline: {counted(sightings.unreadable, 'record')} of put sites left out, "
            f"which nobody can read"
        )
    if not sightings.sites:
        setting.console.note("userlock baseline: there is no put site in what was read")


def _write(
    path: Path, baseline: Baseline, sightings: Sightings, setting: Setting, *, keep: bool
) -> int:
    added, stale = baseline.compare(sightings.sites)
    removed = [] if keep else stale
    new = baseline.updated(sightings.sites, keep=keep)
    try:
        new.write(path)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}", USAGE) from error
    console = setting.console
    if setting.json:
        console.document(
            {
                "file": str(path),
                "known": len(new),
                "seen": len(sightings.sites),
                "added": [str(site) for site in added],
                "removed": [str(site) for site in removed],
            }
        )
    else:
        for sign, sites in (("+", added), ("-", removed)):
            for site in sites:
                console.say(f"{sign} {shown(str(site))}")
        console.say(
            f"{shown(str(path))}: {counted(len(new), 'put site')}; {len(added)} added, "
            f"{len(removed)} removed"
        )
    return FINE


def _check(
    path: Path, baseline: Baseline, sightings: Sightings, setting: Setting, *, strict: bool
) -> int:
    new, stale = baseline.compare(sightings.sites)
    console = setting.console
    if setting.json:
        console.document(
            {
                "file": str(path),
                "known": len(baseline),
                "seen": len(sightings.sites),
                "new": [_facts(site, sightings.sites[site]) for site in new],
                "stale": [str(site) for site in stale],
            }
        )
    else:
        for site in new:
            console.say(f"new    {shown(str(site))}{_where(sightings.sites[site])}")
        for site in stale:
            console.say(f"stale  {shown(str(site))}")
        console.say(
            f"{shown(str(path))}: {counted(len(baseline), 'put site')} known, "
            f"{len(sightings.sites)} seen; {len(new)} new, {len(stale)} stale"
        )
    return NO if new or (strict and stale) else FINE


def _facts(site: Site, seen: Sighting) -> dict[str, Any]:
    return {
        "site": str(site),
        "put": seen.facts.get("put"),
        "read": seen.facts.get("read"),
        "times": seen.times,
    }


def _where(seen: Sighting) -> str:
    """Return the lines, where they were when it was seen, for whoever looks for it."""
    places = [
        f"{word} at {place.get('file')}:{place.get('line')}"
        for word, place in (("read", seen.facts.get("read")), ("put", seen.facts.get("put")))
        if place
    ]
    return f"\n       {shown(', '.join(places))}" if places else ""
