"""The tables in docs/provenance.md, made of the lists that the tests go through.

python -m tests.contract.ndb.ways.document      writes them into it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.contract.ndb.ways import writes
from tests.contract.ndb.ways.complete import WAYS_IN, WAYS_OUT
from tests.contract.ndb.ways.situations import BASIC, OTHERS, Situation, expected
from tests.contract.ndb.ways.tables import Gives, WayIn, WayOut

DOCUMENT = Path(__file__).parents[4] / "docs" / "provenance.md"
_PLACE = r"(<!-- table: {} -->\n).*?(<!-- end -->)"

_BY_NAME = {
    "put": next(way for way in WAYS_OUT if way.write is writes.put),
    "delete": next(way for way in WAYS_OUT if way.write is writes.delete),
    "thread": next(way for way in WAYS_OUT if way.write is writes.put_from_a_thread),
}

#: Of the table of situations: a heading, how it is read, how it is written.
_COLUMNS: tuple[tuple[str, Gives, WayOut], ...] = (
    ("put of the entity", Gives.WHOLE, _BY_NAME["put"]),
    ("of a part", Gives.PARTIAL, _BY_NAME["put"]),
    ("of a new object", Gives.NEW, _BY_NAME["put"]),
    ("of an entity read under no lock", Gives.UNLOCKED, _BY_NAME["put"]),
    ("put from another thread", Gives.WHOLE, _BY_NAME["thread"]),
    ("delete", Gives.WHOLE, _BY_NAME["delete"]),
)


def tables() -> Mapping[str, str]:
    """Each table by its name, in Markdown."""
    return {
        "ways in": _table(
            ("the object comes from", "and is", "of a future: asked"),
            ((way.name, way.gives.value, _asked(way)) for way in WAYS_IN),
        ),
        "ways out": _table(
            ("written by", "checked against"),
            ((way.name, _checked(way)) for way in WAYS_OUT),
        ),
        "situations": _table(
            ("", *(heading for heading, _, _ in _COLUMNS)),
            ((situation.name, *_outcomes(situation)) for situation in (*BASIC, *OTHERS)),
        ),
    }


def _asked(way: WayIn) -> str:
    if not way.is_async:
        return ""
    return "at the call" if way.sent_at_once else "in the next turn"


def _checked(way: WayOut) -> str:
    if way.holds_nothing:
        return "no lock: the thread has none"
    return "the lock that is held" if way.deletes else "the lock that is held, and the read"


def _outcomes(situation: Situation) -> Iterable[str]:
    for _, gives, way_out in _COLUMNS:
        way_in = _example(gives, situation)
        if way_in is None or not situation.applies(way_in, way_out):
            yield "—"
        else:
            error = expected(way_in, way_out, situation)
            yield "lands" if error is None else f"`{error.__name__}`"


def _example(gives: Gives, situation: Situation) -> WayIn | None:
    """A way in to which the situation applies."""
    for way in WAYS_IN:
        if way.gives is gives and situation.applies(way, _BY_NAME["put"]):
            return way
    return None


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headings = tuple(headings)
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(text: str) -> str:
    """The document with the tables as they are now."""
    for name, table in tables().items():
        place = re.compile(_PLACE.format(name), re.DOTALL)
        assert place.search(text), f"no place for the table: {name}"
        text = place.sub(rf"\1{table}\2", text)
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(filled(DOCUMENT.read_text()))
