"""Put sites in logs and reports: JSON lines, or one JSON array."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from userlock.cli.command import USAGE, CommandError
from userlock.cli.console import Console
from userlock.sites import FACTS_KEY, Project, Site

#: Loggers nest what they are given: Cloud Logging puts it in `jsonPayload`.
_DEEPEST = 6


class Sighting(NamedTuple):
    """One put site, as logs and reports have it.

    Attributes:
        facts: as one of them says, with lines.
        times: how often, as far as they say: a log has each site once for each process.
    """

    facts: dict[str, Any]
    times: int


class Sightings:
    """Gathers put sites.

    Args:
        project: names their files.

    Attributes:
        sites: what was found.
        unreadable: how many lines seemed to have a site, and made no sense.
    """

    def __init__(self, project: Project) -> None:
        self.sites: dict[Site, Sighting] = {}
        self.unreadable = 0
        self._project = project

    def read(self, name: str, console: Console) -> None:
        """Gather from a file, or from standard input if it is named `-`.

        Raises:
            CommandError: it cannot be read.
        """
        if name == "-":
            self._gather(console.stdin)
            return
        try:
            with Path(name).open(encoding="utf-8", errors="replace") as file:
                self._gather(file)
        except OSError as error:
            raise CommandError(f"{name}: {error.strerror or error}", USAGE) from error

    def _gather(self, lines: TextIO) -> None:
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
        """Each line's document, or the one document that all of them are: an array."""
        lines = iter(lines)
        first = next((line for line in lines if line.strip()), "")
        if first.lstrip().startswith("["):
            every = [first, *lines]
            try:
                yield json.loads("".join(every))
            except (ValueError, RecursionError):
                first, lines = "", iter(every)  # a line that only begins like one
            else:
                return
        for line in itertools.chain([first], lines):
            if FACTS_KEY in line:
                yield from self._parsed(line)

    def _parsed(self, text: str) -> Iterator[Any]:
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            self.unreadable += 1


def _find(document: Any, depth: int) -> Iterator[tuple[Any, int]]:
    """Return the facts of sites somewhere in a document, each with its count."""
    if depth < 0:
        return
    if isinstance(document, list):
        for each in document:
            yield from _find(each, depth - 1)
    elif isinstance(document, dict):
        if FACTS_KEY in document:
            count = document.get("count")
            yield document[FACTS_KEY], count if isinstance(count, int) and count > 0 else 1
            return  # others beside it are copies of it
        for each in document.values():
            yield from _find(each, depth - 1)
