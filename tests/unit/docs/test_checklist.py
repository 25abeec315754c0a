"""Each rule of sample_app/CHECKLIST.md names tests that exist."""

from __future__ import annotations

import re

from tests.documents import ROOT

ROWS = re.findall(
    r"^(\d+)\. .* \(`(\S+\.py)`\)\.$", (ROOT / "sample_app/CHECKLIST.md").read_text(), re.MULTILINE
)


def test_the_tests_of_each_rule_exist() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, 31))
    assert [file for _, file in ROWS if not (ROOT / file).exists()] == []
