"""The table in docs/fencing.md is that of the tests."""

from __future__ import annotations

from tests.contract.ndb.ways.document import DOCUMENT, filled


def test_the_table_is_that_of_the_tests() -> None:
    text = DOCUMENT.read_text()
    assert text == filled(text), "run: python -m tests.contract.ndb.ways.document"
