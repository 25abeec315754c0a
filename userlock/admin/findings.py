"""Findings: what an examination of a server has shown."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

Fact = str | float | bool | None


class Verdict(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    #: It works; there is something to know, or to do before it is too late.
    WARNING = "warning"
    #: Locks do not work as they should.
    WRONG = "wrong"


class Finding(NamedTuple):
    """One fact about a server, with its meaning for locks."""

    server: str
    #: One or two words, always the same; "reachable" for whether the server answers.
    subject: str
    verdict: Verdict
    #: The observation, in plain words.
    says: str
    #: The remedy, if something should be done.
    advice: str = ""
    #: The same for programs.
    facts: Mapping[str, Fact] = MappingProxyType({})


class Findings(list[Finding]):
    """The findings about one server, in the order of their discovery."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server = server

    def ok(self, subject: str, says: str, **facts: Fact) -> None:
        """Add a fact that is fine."""
        self.append(Finding(self.server, subject, Verdict.OK, says, "", facts))

    def warning(self, subject: str, says: str, advice: str, **facts: Fact) -> None:
        """Add a warning."""
        self.append(Finding(self.server, subject, Verdict.WARNING, says, advice, facts))

    def wrong(self, subject: str, says: str, advice: str, **facts: Fact) -> None:
        """Add a fault."""
        self.append(Finding(self.server, subject, Verdict.WRONG, says, advice, facts))

    def check(self, subject: str, fine: bool, says: str, advice: str, **facts: Fact) -> None:
        """Add a fact that is fine, or else a warning."""
        if fine:
            self.ok(subject, says, **facts)
        else:
            self.warning(subject, says, advice, **facts)

    def reachable(self, says: str) -> None:
        """Add that the server answers."""
        self.ok("reachable", f"it answers; {says}", up=True)

    def unreachable(self, reason: str, advice: str) -> None:
        """Add that the server does not answer, so nothing else can be found out."""
        self.wrong("reachable", f"it does not answer: {reason}", advice, up=False)


def milliseconds(seconds: float) -> str:
    """Return a time for messages: 0.12 ms, 3.4 ms, 120 ms."""
    ms = seconds * 1000
    digits = 2 if ms < 1 else 1 if ms < 10 else 0
    return f"{ms:,.{digits}f} ms"
