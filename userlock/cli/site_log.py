"""Read put sites from logs and reports: JSON lines, or one JSON array."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from userlock.cli.command import CommandError
from userlock.cli.console import Console
from userlock.sites import FACTS_KEY, Project, Site

#: Logging services nest records: Cloud Logging puts them in `jsonPayload`.
_DEEPEST = 6


class Sighting(NamedTuple):
    """A put site in logs and reports.

    Attributes:
        facts: the facts of one of its violations, with lines.
        times: the number of violations that were reported. A log has one per process.
    """

    facts: dict[str, Any]
    times: int


class SiteLog:
    """The put sites in logs and reports.

    Args:
        project: names their files.

    Attributes:
        sites: the sites.
        unreadable: the number of records that should have a site but cannot be read.
    """

    def __init__(self, project: Project) -> None:
        self.sites: dict[Site, Sighting] = {}
        self.unreadable = 0
        self._project = project

    def read(self, name: str, console: Console) -> None:
        """Add the sites in a file, or those in standard input if the name is `-`.

        Raises:
            CommandError: the file cannot be read.
        """
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
                    seen = self.sites.setdefault(site, Sighting(facts, 0))
                    self.sites[site] = seen._replace(times=seen.times + count)

    def _documents(self, lines: Iterable[str]) -> Iterator[Any]:
        """Give the document of each line, or the one array that all lines are."""
        lines = iter(lines)
        first = next((line for line in lines if line.strip()), "")
        if first.lstrip().startswith("["):
            every = [first, *lines]
            try:
                yield json.loads("".join(every))
                return
            except (ValueError, RecursionError):
                first, lines = "", iter(every)  # a plain line that begins like an array
        for line in itertools.chain([first], lines):
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
