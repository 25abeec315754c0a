"""The tables in docs/provenance.md are those of the tests."""

from __future__ import annotations

from tests.contract.ndb.ways.document import DOCUMENT, filled


def test_the_tables_are_those_of_the_tests() -> None:
    text = DOCUMENT.read_text()
    assert text == filled(text), "run: python -m tests.contract.ndb.ways.document"
