"""Docstrings begin with a verb or a noun, never with a question word."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]

#: The folders whose docstrings are checked.
ROOTS = (
    *("userlock", "emulator", "sample_app", "benchmarks", "tools", "examples", "spec"),
    "tests",
)
#: A docstring that begins with one of these has to be decoded.
QUESTION_WORDS = frozenset(
    {"What", "Who", "Whoever", "Whether", "How", "Where", "When", "Which", "That"}
)

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def questions(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the first words of each docstring that begins with a question word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Documented):
            text = ast.get_docstring(node) or ""
            words = text.split()
            if words and words[0].strip(",.:;") in QUESTION_WORDS:
                yield getattr(node, "lineno", 1), " ".join(words[:8])


def sources(root: str) -> Iterator[Path]:
    """Yield the checked source files of a folder."""
    for name, folders, files in os.walk(ROOT / root):
        folder = Path(name)
        folders[:] = [each for each in folders if each != "node_modules"]
        yield from (folder / file for file in sorted(files) if file.endswith(".py"))


def test_no_docstring_begins_with_a_question_word() -> None:
    paths = [path for root in ROOTS for path in sources(root)]
    assert len(paths) > 500
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in paths
        for line, words in questions(path.read_text())
    ]
    assert found == []


def test_a_question_is_found() -> None:
    """The negative control."""
    assert list(questions('class A:\n    def f(self):\n        """Where: the place."""'))
    assert not list(questions('def f():\n    """Return what was found."""'))
