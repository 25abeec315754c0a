"""Numbers with their nouns, for display."""

from __future__ import annotations

import pytest

import sample_app.words
from userlock.words import counted


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 keys"), (1, "1 key"), (2, "2 keys"), (1204, "1,204 keys")]
)
def test_one_has_no_s(number: int, shown: str) -> None:
    assert counted(number, "key") == shown
    assert sample_app.words.counted(number, "key") == shown.replace(",", "")
