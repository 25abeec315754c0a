"""Each rule of docs/checklist.md names a test that exists."""

from __future__ import annotations

import re

import pytest

from tests.documents import ROOT

ROWS = re.findall(
    r"^\| (\d+) \|.*\| `(\S+?)::(\w+)` \|$", (ROOT / "docs/checklist.md").read_text(), re.MULTILINE
)


def test_the_rules_are_numbered() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, len(ROWS) + 1))
    assert len(ROWS) >= 30


@pytest.mark.parametrize(("file", "name"), [(file, name) for _, file, name in ROWS])
def test_each_test_exists(file: str, name: str) -> None:
    assert re.search(rf"^(def|class) {name}\b", (ROOT / file).read_text(), re.MULTILINE)
