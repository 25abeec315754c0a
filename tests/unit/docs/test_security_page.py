"""The page SECURITY.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "SECURITY.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+/test_\w+\.py)`", PAGE)))


def test_the_tests_that_it_names_are_there() -> None:
    assert NAMED
    assert [name for name in NAMED if not (ROOT / "tests" / name).is_file()] == []


def test_every_untrusted_input_has_a_test() -> None:
    rows = [line.split("|") for line in PAGE.splitlines() if re.match(r"\| .* \| no:", line)]
    assert len(rows) >= 4
    for _, what, _, tests, _ in rows:
        assert "test_" in tests, what
