"""Docstrings begin with a verb, or with a noun: not with a question word."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: A docstring that begins with one of these has to be decoded.
QUESTION_WORDS = frozenset(
    {"What", "Who", "Whoever", "Whether", "How", "Where", "When", "Which", "That"}
)

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def questions(source: str) -> Iterator[tuple[int, str]]:
    """Give the line and the first words of each docstring that begins with a question word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Documented):
            text = ast.get_docstring(node) or ""
            words = text.split()
            if words and words[0].strip(",.:;") in QUESTION_WORDS:
                yield getattr(node, "lineno", 1), " ".join(words[:8])


def test_the_library() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in sorted((ROOT / "userlock").rglob("*.py"))
        for line, words in questions(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        '"""What this module holds."""',
        'class A:\n    """Who waits."""',
        'def f():\n    """Whether it is so."""',
        'async def f():\n    """How, in short."""',
        'class A:\n    def f(self):\n        """Where: the place."""',
    ],
)
def test_a_question_is_found(source: str) -> None:
    """The negative control."""
    assert list(questions(source))


def test_a_verb_is_none() -> None:
    assert not list(questions('def f():\n    """Return what was found."""'))
