"""The command `python -m tools.audit`: known vulnerabilities of the installed packages.

pip-audit looks the packages up. It runs from an environment of its own; the path of its program is
the one argument. Exit codes: 0, each package was looked up and none has a known vulnerability; 1,
some have; 2, some could not be looked up. In that last case pip-audit itself reports "no known
vulnerabilities", even if it looked up nothing at all.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_SHOWN = 10


class Findings(NamedTuple):
    """The findings of pip-audit.

    Attributes:
        vulnerable: packages, each with its vulnerabilities and their fixes.
        unknown: packages that could not be looked up, each with the reason.
    """

    vulnerable: list[str]
    unknown: list[str]


def findings(pins: Sequence[str], said: str) -> Findings:
    """Parse pip-audit's report about these packages ("name==version").

    Packages missing in the report are unknown.
    """
    try:
        document: dict[str, Any] = json.loads(said)
    except ValueError:
        document = {}
    reported = {_plain(each["name"]): each for each in document.get("dependencies", [])}
    vulnerable, unknown = [], []
    for pin in pins:
        package = reported.get(_plain(re.split(r"[=@ ]", pin)[0]), {})
        if "vulns" not in package:
            unknown.append(
                f"{pin}: {package.get('skip_reason', 'missing in the report of pip-audit')}"
            )
        for each in package.get("vulns", ()):
            fixes = ", ".join(each.get("fix_versions", ())) or "none"
            vulnerable.append(f"{pin}: {each['id']} (fixed in: {fixes})")
    return Findings(vulnerable, unknown)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def report(pins: Sequence[str], found: Findings) -> int:
    """Print the findings and return the exit code."""
    for line in found.vulnerable:
        print(line)
    if found.unknown:
        print(f"NOT AUDITED: {len(found.unknown)} of {len(pins)} packages could not be looked up.")
        for line in found.unknown[:_SHOWN]:
            print(f"  {line}")
        if len(found.unknown) > _SHOWN:
            print(f"  and {len(found.unknown) - _SHOWN} more")
    elif not pins:
        print("NOT AUDITED: there are no packages.")
    elif not found.vulnerable:
        print(f"{len(pins)} packages were looked up; none has a known vulnerability.")
    if found.vulnerable:
        return 1
    return 2 if found.unknown or not pins else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit this environment with the given pip-audit."""
    (pip_audit,) = sys.argv[1:] if arguments is None else arguments
    freeze = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
    pins = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout.split("\n")
    pins = [pin for pin in pins if pin]
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text("\n".join(pins))
        options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
        audit = subprocess.run(
            [pip_audit, "--requirement", str(file), *options],
            capture_output=True,
            text=True,
            check=False,
        )
    found = findings(pins, audit.stdout)
    if not audit.stdout:
        print(audit.stderr, file=sys.stderr)
    return report(pins, found)


if __name__ == "__main__":
    sys.exit(main())
