"""The tests that SECURITY.md and sample_app/CHECKLIST.md name exist."""

from __future__ import annotations

import re

from tests.documents import ROOT

SECURITY = (ROOT / "SECURITY.md").read_text()
CHECKLIST = (ROOT / "sample_app/CHECKLIST.md").read_text()


def missing(names: list[str], below: str) -> list[str]:
    assert names
    return [name for name in names if not (ROOT / below / name).is_file()]


def test_those_of_each_untrusted_input() -> None:
    assert missing(re.findall(r"`([\w/]+/test_\w+\.py)`", SECURITY), "tests") == []
    rows = [line.split("|") for line in SECURITY.splitlines() if re.match(r"\| .* \| no:", line)]
    assert len(rows) >= 4
    for _, what, _, tests, _ in rows:
        assert "test_" in tests, what


def test_those_of_each_rule_of_the_sample_app() -> None:
    rows = re.findall(r"^(\d+)\. .* \(`(\S+\.py)`\)\.$", CHECKLIST, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 31))
    assert missing([file for _, file in rows], ".") == []
