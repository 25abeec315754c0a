"""The report of several rounds, as JSON and in a few lines."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.chaos.findings import Finding, Kind
from tests.chaos.harms import STOPS
from tests.chaos.history import History
from tests.chaos.processes import Result
from tests.chaos.verdict import faults, lasting
from userlock.words import counted

#: The excerpt around a finding: seconds before and after it, and the number of records.
_AROUND_SECONDS = 3.0
_MOST_NOTES = 60
_MAXIMA = ("longest delay after a timeout, s",)


@dataclasses.dataclass
class Report:
    """The results of all rounds."""

    seed: str
    store: str = "memcached"
    seconds: float = 0.0
    rounds: int = 0
    findings: list[tuple[int, Finding]] = dataclasses.field(default_factory=list)
    overlaps: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    met: Counter[str] = dataclasses.field(default_factory=Counter)
    operations: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    figures: dict[str, float] = dataclasses.field(default_factory=dict)
    errors: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, result: Result, number: int = 1) -> None:
        """Add the result of a round with that number."""
        self.rounds += 1
        self.seconds += result.seconds
        verdict, history = result.verdict, result.history
        self.findings += ((number, finding) for finding in verdict.findings)
        self.overlaps += verdict.overlaps
        self.faults += faults(history)
        self.met += verdict.met
        self.operations += history.operations
        for name, figure in verdict.figures.items():
            before = self.figures.get(name, 0)
            self.figures[name] = max(before, figure) if name in _MAXIMA else before + figure
        stopped = lasting(history.spans, STOPS)
        self.figures["processes stopped, s"] = round(
            self.figures.get("processes stopped, s", 0.0) + stopped, 1
        )
        self.errors += Counter(
            f"{write.outcome.value}: {write.error}"
            for write in history.writes.values()
            if write.error
        )

    def facts(self) -> dict[str, Any]:
        """Return all results."""
        return {
            "seed": self.seed,
            "store": self.store,
            "hours": round(self.seconds / 3600, 3),
            "rounds": self.rounds,
            "found": {kind.value: self._count(kind) for kind in Kind},
            "findings": [f"round {number}: {finding}" for number, finding in self.findings],
            "figures": self.figures,
            "operations": _nested(self.operations),
            "errors of writes": dict(self.errors.most_common()),
            "faults": dict(self.faults.most_common()),
            "effects of the faults": dict(sorted(self.met.items())),
            "legitimate overlaps": dict(self.overlaps.most_common()),
            "versions": versions(),
        }

    def _count(self, kind: Kind) -> int:
        return sum(finding.kind is kind for _, finding in self.findings)

    def brief(self) -> str:
        """Return the most important results in a few lines."""
        figures = self.figures
        found = ", ".join(f"{self._count(kind)} {kind.name.lower()}" for kind in Kind)
        return (
            f"{counted(self.rounds, 'round')}, {self.seconds:.0f} s, {self.faults.total()} faults, "
            f"{figures.get('operations', 0):.0f} operations, {figures.get('writes', 0):.0f} writes "
            f"({figures.get('writes accepted', 0):.0f} accepted, "
            f"{figures.get('writes refused', 0):.0f} refused, "
            f"{figures.get('writes unknown', 0):.0f} unknown)\n"
            f"{figures.get('hand-overs checked for exclusion', 0):.0f} hand-overs, "
            f"{figures.get('reads compared with earlier writes', 0):.0f} reads and "
            f"{figures.get('waits checked for order', 0):.0f} waits checked; "
            f"{self.overlaps.total()} legitimate overlaps\n{found}"
        )

    def write(self, folder: Path) -> None:
        """Write `report.json` into the folder."""
        (folder / "report.json").write_text(json.dumps(self.facts(), indent=2) + "\n")


def _nested(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (kind, ended), count in sorted(counts.items()):
        nested.setdefault(kind.lower(), {})[ended] = count
    return nested


def versions() -> dict[str, str]:
    """Return the versions of the software under test."""
    memcached = subprocess.run(["memcached", "-V"], capture_output=True, text=True, check=True)
    return {
        "python": platform.python_version(),
        "kernel": platform.release().partition("-")[0],
        "memcached": memcached.stdout.split()[-1],
        **{name: version(name) for name in ("google-cloud-ndb", "pymemcache", "userlock")},
    }


def excerpt(result: Result, finding: Finding) -> list[str]:
    """Return the records of all processes around a finding, in the order of time."""
    place = finding.place
    names = {place, place.partition("/")[0], finding.about} - {""}
    names |= _tokens(result.history, names)
    notes: list[tuple[float, str]] = []
    for path in result.notes:
        for line in path.read_text().splitlines():
            mine = any(f'"{name}"' in line for name in names)
            if line.endswith("}") and (mine or (path.stem == "nemesis" and '"begins"' in line)):
                facts = json.loads(line)
                at, what = facts.pop("at"), facts.pop("what")
                reported = ", ".join(f"{name}={fact}" for name, fact in facts.items() if fact)
                notes.append((at, f"{at:.3f} {path.stem}: {what} {reported}"))
    notes.sort()
    if finding.at is None:
        return [line for _, line in notes][-_MOST_NOTES:]
    return _middle(line for at, line in notes if abs(at - finding.at) < _AROUND_SECONDS)


def _tokens(history: History, locks: set[str]) -> set[str]:
    """Return the tokens that belong to these locks: some records contain only those."""
    mine = [asked for asked in history.attempts.values() if asked.lock_id in locks]
    return {asked.token for asked in mine if asked.token} | {asked.id for asked in mine}


def _middle(lines: Iterable[str]) -> list[str]:
    every = list(lines)
    cut = max(0, len(every) - _MOST_NOTES) // 2
    return every[cut : cut + _MOST_NOTES]
