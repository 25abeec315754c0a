"""`userlock doctor`: is the store fit to keep locks, and what is wrong with it?"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from userlock.admin.diagnostics import examine
from userlock.admin.findings import Finding, Verdict
from userlock.cli.command import FINE, NO, UNREACHABLE, Setting, plain_reason
from userlock.cli.console import shown

NAME = "doctor"
SUMMARY = "asks the server that keeps the locks how it is, and says what is wrong with it"
NO_MEANS = "something is wrong (a warning is none)"
DETAILS = """\
Each finding is ok, a warning (locks work; there is something to know or to do) or
wrong. Takes a few seconds, writes a record of its own and removes it. Of several
servers each one is asked; exit code 3 says that none of them answers. With
--datastore it is Datastore that is asked, which needs no --store: are versions
reported, is base_version honoured, are stale writes refused on their way through
the installed ndb? The JSON document has verdict and findings
(server, subject, verdict, says, advice, facts).
"""

_ORDER = (Verdict.OK, Verdict.WARNING, Verdict.WRONG)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--datastore",
        nargs="?",
        const="",
        metavar="PROJECT/DATABASE",
        help="ask Datastore instead, whether it refuses stale writes: the one that the environment "
        "names, or another",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="show only what is a warning, or wrong"
    )


def run(options: argparse.Namespace, setting: Setting) -> int:
    if options.datastore is None:
        place, findings = setting.url, examine(setting.service().store)
    else:
        place, findings = "datastore", examine_datastore(options.datastore)
    worst = max((each.verdict for each in findings), key=_ORDER.index, default=Verdict.OK)
    if setting.json:
        setting.console.document(
            {
                "store": place,
                "verdict": worst.value,
                "findings": [_facts(each) for each in findings],
            }
        )
    else:
        _tell(setting, findings, quiet=options.quiet)
    if _all_down(findings):
        return UNREACHABLE
    return NO if worst is Verdict.WRONG else FINE


def examine_datastore(name: str) -> list[Finding]:
    """Try Datastore out: find whether it can be left to it to refuse stale writes.

    Args:
        name: PROJECT/DATABASE; what is left out is as the environment says.
    """
    from userlock.admin.ndb import examine as examine_connected  # ndb takes long to import

    project, _, database = name.partition("/")
    return examine_connected(project or None, None if database == "(default)" else database or None)


def _all_down(findings: list[Finding]) -> bool:
    down = {each.server for each in findings if each.subject == "reachable" and not _up(each)}
    return bool(findings) and {each.server for each in findings} == down


def _up(finding: Finding) -> bool:
    return finding.verdict is not Verdict.WRONG


def _facts(finding: Finding) -> dict[str, Any]:
    return {
        "server": finding.server,
        "subject": finding.subject,
        "verdict": finding.verdict.value,
        "says": plain_reason(finding.says),
        "advice": finding.advice,
        "facts": dict(finding.facts),
    }


def _tell(setting: Setting, findings: list[Finding], *, quiet: bool) -> None:
    console = setting.console
    lines: list[str] = []
    for server in dict.fromkeys(each.server for each in findings):
        own = [each for each in findings if each.server == server]
        lines.append(shown(server))
        for each in own:
            if quiet and each.verdict is Verdict.OK:
                continue
            word = each.verdict.value
            gap = " " * (8 - len(word))
            text = folded(plain_reason(each.says), 23, console.columns)
            lines.append(f"  {console.coloured(word)}{gap}{each.subject:12} {text}")
            if each.advice:
                lines.append(" " * 23 + "→ " + folded(shown(each.advice), 25, console.columns))
    counts = Counter(each.verdict for each in findings)
    lines.append(", ".join(f"{counts[verdict]} {verdict.value}" for verdict in _ORDER))
    console.say("\n".join(lines))


def folded(text: str, indent: int, columns: int) -> str:
    """Text in lines that fit, all but the first indented."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and indent + len(line) + 1 + len(word) > max(columns, indent + 20) - 1:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return ("\n" + " " * indent).join([*lines, line])
