"""The tables in docs/provenance.md, generated from the lists that the tests go through.

python -m tests.contract.ndb.ways.document      writes them into the page
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.contract.ndb.ways import writes
from tests.contract.ndb.ways.complete import WAYS_IN, WAYS_OUT
from tests.contract.ndb.ways.situations import BASIC, OTHERS, Situation, expected
from tests.contract.ndb.ways.tables import Gives, WayIn, WayOut

DOCUMENT = Path(__file__).parents[4] / "docs" / "provenance.md"
_Fact = TypeVar("_Fact")
_PLACE = r"(<!-- table: {} -->\n).*?(<!-- end -->)"

_BY_NAME = {
    "put": next(way for way in WAYS_OUT if way.write is writes.put),
    "delete": next(way for way in WAYS_OUT if way.write is writes.delete),
    "thread": next(way for way in WAYS_OUT if way.write is writes.put_from_a_thread),
}

#: Columns of the table of situations: a heading, how the entity is read, how it is written.
_COLUMNS: tuple[tuple[str, Gives, WayOut], ...] = (
    ("put of the entity", Gives.WHOLE, _BY_NAME["put"]),
    ("put of an entity read under no lock", Gives.UNLOCKED, _BY_NAME["put"]),
    ("put of a new object", Gives.NEW, _BY_NAME["put"]),
    ("put from another thread", Gives.WHOLE, _BY_NAME["thread"]),
    ("delete", Gives.WHOLE, _BY_NAME["delete"]),
)
_OF_A_PART = Gives.PARTIAL, _BY_NAME["put"]


def tables() -> Mapping[str, str]:
    """Return each table by its name, in Markdown."""
    situations = (*BASIC, *OTHERS)
    assert {_outcome(*_OF_A_PART, each) for each in situations} <= {"`PartialEntityPut`", "—"}
    return {
        "reads": _table(
            ("result", "a future's request is sent", "read by"),
            (
                (*facts, "; ".join(names))
                for facts, names in _grouped((_read_facts(way), way.name) for way in WAYS_IN)
            ),
        ),
        "writes": _table(
            ("checked against", "written by"),
            (
                (checked, "; ".join(names))
                for checked, names in _grouped((_checked(way), way.name) for way in WAYS_OUT)
            ),
        ),
        "situations": _table(
            ("situation", *(heading for heading, _, _ in _COLUMNS)),
            (
                ("; ".join(names), *outcomes)
                for outcomes, names in _grouped((_outcomes(each), each.name) for each in situations)
            ),
        ),
    }


def _grouped(pairs: Iterable[tuple[_Fact, str]]) -> Iterable[tuple[_Fact, list[str]]]:
    """Return the names in groups of equal facts, in the order of their first names."""
    groups: dict[_Fact, list[str]] = {}
    for fact, name in pairs:
        groups.setdefault(fact, []).append(name)
    return groups.items()


def _read_facts(way: WayIn) -> tuple[str, str]:
    sent = "at the call" if way.sent_at_once else "in the next turn"
    return way.gives.value, sent if way.is_async else ""


def _checked(way: WayOut) -> str:
    if way.holds_nothing:
        return "no lock: the thread holds none"
    return "the lock held" if way.deletes else "the lock held and the read stamp"


def _outcomes(situation: Situation) -> tuple[str, ...]:
    return tuple(_outcome(gives, way_out, situation) for _, gives, way_out in _COLUMNS)


def _outcome(gives: Gives, way_out: WayOut, situation: Situation) -> str:
    way_in = _example(gives, situation)
    if way_in is None or not situation.applies(way_in, way_out):
        return "—"
    error = expected(way_in, way_out, situation)
    return "lands" if error is None else f"`{error.__name__}`"


def _example(gives: Gives, situation: Situation) -> WayIn | None:
    """Return a way in to which the situation applies."""
    for way in WAYS_IN:
        if way.gives is gives and situation.applies(way, _BY_NAME["put"]):
            return way
    return None


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headings = tuple(headings)
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(text: str) -> str:
    """Return the document with the tables as they are now."""
    for name, table in tables().items():
        place = re.compile(_PLACE.format(name), re.DOTALL)
        assert place.search(text), f"no place for the table: {name}"
        text = place.sub(rf"\1{table}\2", text)
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(filled(DOCUMENT.read_text()))
