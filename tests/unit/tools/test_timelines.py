"""Timelines as drawings."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.documents import ROOT
from tools import timelines

TEXT = """\
A              record <A>     B
lock ┄┄┄┄┄ waits              append +B
append =A ───▶ A =A ◀──────── read
"""


def drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(timelines.svg(text))  # noqa: S314 (our own)


def test_words_keep_their_columns() -> None:
    texts = [each for each in drawn(TEXT).iter() if each.tag == "text"]
    columns = {each.text: float(each.attrib["x"]) for each in texts}
    assert columns["record <A>"] == columns["A =A"]
    assert columns["B"] == columns["append +B"] == columns["read"]
    assert [each.text for each in texts if each.get("class") == "head"] == ["A", "record <A>", "B"]


def test_arrows_point_at_their_words() -> None:
    points = [each.attrib["points"].split()[0] for each in drawn(TEXT).iter("polygon")]
    lines = list(drawn(TEXT).iter("line"))
    right, left = points
    assert right.split(",")[0] == lines[1].attrib["x2"]
    assert left.split(",")[0] == lines[2].attrib["x1"]
    assert [each.get("class") for each in lines] == ["wait", None, None]


def test_it_is_read_aloud() -> None:
    title = drawn(TEXT).find("svg/title")
    assert title is not None
    assert title.text == "A record <A> B; lock then waits append +B; append =A to A =A from read"


@pytest.mark.parametrize("text", ["├── a ──▶ b\n", "plain text\n", "HTTP/1.1 503\n"])
def test_other_texts_stay(text: str) -> None:
    page = f"```text\n{text}```\n"
    assert timelines.with_drawings(page) == page


def test_code_stays() -> None:
    page = '```python\nprint("a ──▶ b")\n```\n'
    assert timelines.with_drawings(page) == page


@pytest.mark.parametrize("page", ["README", "docs/protocol", "docs/fencing", "docs/outbox"])
def test_the_pages_have_some(page: str) -> None:
    markdown = (ROOT / f"{page}.md").read_text()
    found = re.findall("<svg.*?</svg>", timelines.with_drawings(markdown), re.DOTALL)
    assert found
    for each in found:
        ElementTree.fromstring(each)  # noqa: S314 (our own)
