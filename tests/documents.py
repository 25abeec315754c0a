"""The pages of the documentation, and the code in them, for the tests that run it.

Each page with code has one module of tests, which takes the page's blocks one
by one; `tests/unit/test_documents.py` says which, and finds blocks that nobody
has taken.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
        page: of which page, as from the root of the repository.
        line: the line of the page in which the code begins.
        language: as the page says; empty if it does not.
        text: the code, each line with its end.
        below: what the page says after it, up to its next block.
    """

    page: str
    line: int
    language: str
    text: str
    below: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language or 'no language'})"

    def run(self, names: dict[str, Any]) -> dict[str, Any]:
        """Execute it with these names, which it may change; errors name the line of the page."""
        code = compile("\n" * (self.line - 1) + self.text, str(ROOT / self.page), "exec")
        exec(code, names)  # noqa: S102 (our own pages)
        return names

    def commands(self) -> list[tuple[str, str]]:
        """Of a console: each command with what is printed after it."""
        found = re.split(r"^\$ (.*(?:\\\n.*)*)\n", self.text, flags=re.MULTILINE)
        assert not found[0], f"{self} does not begin with a command"
        return list(zip(found[1::2], found[2::2], strict=True))


class Page:
    """A page, and which of its blocks are taken.

    Args:
        path: as from the root of the repository.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.text = (ROOT / path).read_text()
        self.blocks = _blocks(path, self.text)
        self._taken: list[Block] = []

    def take(self, language: str, saying: str = "") -> Block:
        """The next block in this language that is not taken yet.

        Args:
            language: of the block.
            saying: only a block that has this text.
        """
        for block in self.left():
            if block.language == language and saying in block.text:
                self._taken.append(block)
                return block
        raise LookupError(f"{self.path} has no (further) block in {language} with {saying!r}")

    def take_all(self, language: str) -> list[Block]:
        """All blocks in this language that are not taken yet."""
        found = [block for block in self.left() if block.language == language]
        self._taken += found
        return found

    def left(self) -> list[Block]:
        """The blocks that nobody has taken."""
        return [block for block in self.blocks if block not in self._taken]


def pages() -> list[str]:
    """Every page that people read, as from the root of the repository."""
    found = [*ROOT.glob("*.md"), ROOT / "spec/README.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def _blocks(path: str, text: str) -> list[Block]:
    lines = text.splitlines(keepends=True)
    tokens = [
        (token, token.map)
        for token in MarkdownIt().parse(text)
        if token.type in ("fence", "code_block") and token.map is not None
    ]
    begins = [place[0] for _, place in tokens[1:]] + [len(lines)]
    return [
        Block(
            page=path,
            line=place[0] + (2 if token.type == "fence" else 1),
            language=token.info.split(" ")[0],
            text=token.content,
            below="".join(lines[place[1] : begin]),
        )
        for (token, place), begin in zip(tokens, begins, strict=False)
    ]
