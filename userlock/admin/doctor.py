"""Check whether a server is fit to keep locks: `userlock doctor`."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from userlock.admin.command import (
    UNREACHABLE,
    Invocation,
    argument,
    command,
    flag,
    plain_reason,
)
from userlock.admin.health import Finding, Findings, Verdict, examine
from userlock.words import escaped

_ORDER = (Verdict.OK, Verdict.WARNING, Verdict.WRONG)


@command(
    argument(
        "--datastore",
        nargs="?",
        const="",
        metavar="PROJECT/DATABASE",
        help="check Datastore instead: that of the environment, or the one named",
    ),
    flag("--quiet", "show only warnings and errors"),
    no="something is wrong (a warning is none)",
)
def doctor(options: argparse.Namespace, invocation: Invocation) -> int:
    """Check the server that keeps the locks.

    Each finding is ok, a warning (locks work, but read it) or wrong. Takes a few seconds,
    writes a record of its own and removes it. Every server of the store is checked; exit
    code 3 means that none of them answers. With --datastore, Datastore is checked, and
    --store is not needed: does it report versions, does it honour base_version, does it
    refuse stale writes that pass through the installed ndb? The JSON document has store,
    verdict and findings (server, subject, verdict, says, advice, facts).
    """
    if options.datastore is None:
        place, findings = invocation.url, examine(invocation.service().store)
    else:
        place, findings = "datastore", examine_datastore(options.datastore)
    worst = max((each.verdict for each in findings), key=_ORDER.index, default=Verdict.OK)
    document = {"store": place, "verdict": worst.value, "findings": list(map(_facts, findings))}
    lines = _lines(findings, quiet=options.quiet)
    code = invocation.answer(document, *lines, no=worst is Verdict.WRONG)
    return UNREACHABLE if _all_down(findings) else code


def examine_datastore(name: str) -> list[Finding]:
    """Return findings about Datastore."""
    try:
        from userlock.admin.ndb import examine as examine_connected  # importing ndb takes long
    except ImportError as error:
        if error.name is not None:
            raise  # ndb itself is missing
        found = Findings("datastore")
        found.wrong("ndb", str(error), "Writes are not protected with this release.", fenced=False)
        return found

    project, _, database = name.partition("/")
    return examine_connected(project or None, None if database == "(default)" else database or None)


def _all_down(findings: list[Finding]) -> bool:
    down = {
        each.server
        for each in findings
        if each.subject == "reachable" and each.verdict is Verdict.WRONG
    }
    return bool(findings) and {each.server for each in findings} == down


def _facts(finding: Finding) -> dict[str, Any]:
    return {
        **finding._asdict(),
        "verdict": finding.verdict.value,
        "says": plain_reason(finding.says),
        "facts": dict(finding.facts),
    }


def _lines(findings: list[Finding], *, quiet: bool) -> list[str]:
    lines: list[str] = []
    for server in dict.fromkeys(each.server for each in findings):
        lines.append(escaped(server))
        for each in findings:
            if each.server != server or (quiet and each.verdict is Verdict.OK):
                continue
            lines.append(f"  {each.verdict.value:7} {each.subject:12} {plain_reason(each.says)}")
            if each.advice:
                lines.append(f"{'':23}→ {escaped(each.advice)}")
    counts = Counter(each.verdict for each in findings)
    lines.append(", ".join(f"{counts[verdict]} {verdict.value}" for verdict in _ORDER))
    return lines
