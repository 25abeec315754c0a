"""Every rule of the table in every place: refused in the service's words, or taken."""

from __future__ import annotations

import pytest

from tests.unit.emulator.builders import PROJECT, entity, key
from tests.unit.emulator.subject import Subject
from tools.compare.boundaries import Boundary, boundaries
from userlock_emulator.datastore.errors import DatastoreError

ALL = list(boundaries(PROJECT))


@pytest.mark.parametrize("rule", dict.fromkeys(each.rule for each in ALL))
def test_each_rule_in_each_place(engine: Subject, rule: str) -> None:
    engine.put(entity(key("A", "x"), a=1, s="x"))
    for boundary in ALL:
        if boundary.rule == rule:
            assert _outcome(engine, boundary) == (boundary.code, True), boundary


def _outcome(engine: Subject, boundary: Boundary) -> tuple[str, bool]:
    """Return the code, and whether the table's words are in the text."""
    try:
        engine.call(boundary.rpc, boundary.request)
    except DatastoreError as error:
        return error.code.name, boundary.said in error.message
    return "OK", True
