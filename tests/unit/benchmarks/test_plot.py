"""The plot is a labelled SVG."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from benchmarks import plot

SVG = "{http://www.w3.org/2000/svg}"
WAITS = {
    "userlock": [0.03 + number / 100_000 for number in range(500)],
    "a <slow> & unfair one": [0.00001] * 900 + [1.0, 8.0],
}


@pytest.fixture
def drawn() -> ElementTree.Element:
    return ElementTree.fromstring(plot.svg(WAITS, subtitle="Eight & one"))  # noqa: S314 - our own


def test_it_is_well_formed_and_named(drawn: ElementTree.Element) -> None:
    assert drawn.tag == f"{SVG}svg"
    assert drawn.get("role") == "img"
    ids = {element.get("id") for element in drawn}
    assert set((drawn.get("aria-labelledby") or "").split()) <= ids
    description = drawn.findtext(f"{SVG}desc") or ""
    assert all(name in description for name in WAITS)
    assert "8 s" in description


def test_each_contender_has_a_curve_an_end_and_a_name(drawn: ElementTree.Element) -> None:
    assert len(drawn.findall(f"{SVG}polyline")) == len(drawn.findall(f"{SVG}circle")) == len(WAITS)
    assert WAITS.keys() <= {text.text for text in drawn.findall(f"{SVG}text")}


def test_ours_is_drawn_over_the_others(drawn: ElementTree.Element) -> None:
    classes = [(line.get("class") or "").split() for line in drawn.findall(f"{SVG}polyline")]
    assert ["ours" in one for one in classes] == [False, True]


def test_curves_go_up_and_to_the_right_within_the_paper(drawn: ElementTree.Element) -> None:
    *_, width, height = [float(number) for number in (drawn.get("viewBox") or "").split()]
    for line in drawn.findall(f"{SVG}polyline"):
        pairs = [pair.split(",") for pair in (line.get("points") or "").split()]
        way = [(float(x), float(y)) for x, y in pairs]
        assert all(right >= left and up <= down for (left, down), (right, up) in pairwise(way))
        assert all(0 <= x <= width and 0 <= y <= height for x, y in way)


def test_light_and_dark_have_colours_for_everything(drawn: ElementTree.Element) -> None:
    style = drawn.findtext(f"{SVG}style") or ""
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    for used in ("--ink", "--paper", "--u0", "--o0"):
        assert f"{used}:" in light
        assert f"{used}:" in dark


def test_a_curve_ends_with_the_longest_wait() -> None:
    first, *between, last = plot.points(WAITS["a <slow> & unfair one"])
    assert (first, last) == ((0.00001, 0), (8.0, 100))
    assert len(between) < 200


@pytest.mark.parametrize("waits", [{}, {"userlock": []}])
def test_nothing_to_show_is_refused(waits: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="no waits"):
        plot.svg(waits, subtitle="")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0001, "0.1 ms"), (0.0053, "5.3 ms"), (0.0471, "47 ms"), (0.4711, "471 ms"), (8, "8 s")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert plot.time_text(seconds) == text
