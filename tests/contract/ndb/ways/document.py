"""The table in docs/fencing.md, generated from the lists that the tests go through.

python -m tests.contract.ndb.ways.document      writes it into the page
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.contract.ndb.ways import writes
from tests.contract.ndb.ways.complete import WAYS_IN, WAYS_OUT
from tests.contract.ndb.ways.situations import BASIC, OTHERS, Situation, expected
from tests.contract.ndb.ways.tables import Gives, WayIn, WayOut

DOCUMENT = Path(__file__).parents[4] / "docs" / "fencing.md"
_PLACE = re.compile(r"(<!-- table: situations -->\n).*?(<!-- end -->)", re.DOTALL)

_BY_NAME = {
    "put": next(way for way in WAYS_OUT if way.write is writes.put),
    "delete": next(way for way in WAYS_OUT if way.write is writes.delete),
}

#: Columns of the table of situations: a heading, how the entity is read, how it is written.
_COLUMNS: tuple[tuple[str, Gives, WayOut], ...] = (
    ("put of the entity", Gives.WHOLE, _BY_NAME["put"]),
    ("put of an entity read under no lock", Gives.UNLOCKED, _BY_NAME["put"]),
    ("put of a new object", Gives.NEW, _BY_NAME["put"]),
    ("delete", Gives.WHOLE, _BY_NAME["delete"]),
)
_OF_A_PART = Gives.PARTIAL, _BY_NAME["put"]


def table() -> str:
    """Return the table of situations, in Markdown."""
    situations = (*BASIC, *OTHERS)
    assert {_outcome(*_OF_A_PART, each) for each in situations} <= {"`PartialEntityPut`", "—"}
    return _table(
        ("situation", *(heading for heading, _, _ in _COLUMNS)),
        (
            ("; ".join(names), *outcomes)
            for outcomes, names in _grouped((_outcomes(each), each.name) for each in situations)
        ),
    )


def _grouped(
    pairs: Iterable[tuple[tuple[str, ...], str]],
) -> Iterable[tuple[tuple[str, ...], list[str]]]:
    """Return the names in groups of equal outcomes, in the order of their first names."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for outcomes, name in pairs:
        groups.setdefault(outcomes, []).append(name)
    return groups.items()


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
    rule = f"|{'---|' * len(headings)}\n"
    head, *body = (f"| {' | '.join(line)} |\n" for line in (headings, *rows))
    return "".join((head, rule, *body))


def filled(text: str) -> str:
    """Return the document with the table as it is now."""
    assert _PLACE.search(text), "no place for the table"
    return _PLACE.sub(rf"\1{table()}\2", text)


if __name__ == "__main__":
    DOCUMENT.write_text(filled(DOCUMENT.read_text()))
