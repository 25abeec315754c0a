"""The command `make audit`: a package that could not be looked up never counts as safe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.audit import Findings, findings, main, report

PINS = ["Flask-Thing==1.0", "redis==5.0"]
FINE = {"name": "redis", "version": "5.0", "vulns": []}
VULNERABLE = {
    "name": "flask_thing",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}],
}
SKIPPED = {"name": "flask-thing", "skip_reason": "not found on PyPI"}


def said(*dependencies: object) -> str:
    return json.dumps({"dependencies": dependencies, "fixes": []})


@pytest.mark.parametrize(
    ("document", "code", "text"),
    [
        (said(VULNERABLE | {"vulns": []}, FINE), 0, "2 packages were looked up; none has"),
        (said(VULNERABLE, FINE), 1, "Flask-Thing==1.0: PYSEC-1 (fixed in: 1.1)"),
        (said(SKIPPED, FINE), 2, "NOT AUDITED: 1 of 2 packages"),
        (said(FINE), 2, "missing in the report of pip-audit"),
        (said(), 2, "NOT AUDITED: 2 of 2 packages"),
        ("", 2, "NOT AUDITED: 2 of 2 packages"),
        ("not JSON", 2, "NOT AUDITED: 2 of 2 packages"),
    ],
)
def test_only_what_was_looked_up_is_safe(
    capsys: pytest.CaptureFixture[str], document: str, code: int, text: str
) -> None:
    assert report(PINS, findings(PINS, document)) == code
    shown = capsys.readouterr().out
    assert text in shown
    assert ("none has a known vulnerability" in shown) is (code == 0)


def test_an_empty_environment_is_no_audit() -> None:
    assert report([], Findings([], [])) == 2


@pytest.mark.parametrize(
    ("script", "reported"),
    [("echo '{\"dependencies\": []}'", ""), ("echo no data >&2", "no data\n\n")],
)
def test_a_pip_audit_without_data_that_reports_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, reported: str
) -> None:
    """A pip-audit without access to its data exits with 0."""
    content = tmp_path / "pip-audit"
    content.write_text(f"#!/bin/sh\n{script}\n")
    content.chmod(0o755)
    assert main([str(content)]) == 2
    shown = capsys.readouterr()
    assert "NOT AUDITED" in shown.out
    assert shown.err == reported
