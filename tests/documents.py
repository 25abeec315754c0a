"""The pages of the documentation and their code, for the tests that run it.

Each page with code has one test module, which takes the page's blocks one by one.
`tests/unit/docs/test_documents.py` lists them, and finds blocks that no test has taken.
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
        page: the path of the page from the root of the repository.
        line: the first line of the code in the page.
        language: the language in the page; empty if there is none.
        text: the code, each line with its end.
        below: the text after it, up to the next block.
    """

    page: str
    line: int
    language: str
    text: str
    below: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language or 'no language'})"

    def run(self, names: dict[str, Any]) -> dict[str, Any]:
        """Execute it with these names, which it may change. Errors name the line of the page."""
        code = compile("\n" * (self.line - 1) + self.text, str(ROOT / self.page), "exec")
        exec(code, names)  # noqa: S102 (our own pages)
        return names

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands of a console, each with its output."""
        found = re.split(r"^\$ (.*(?:\\\n.*)*)\n", self.text, flags=re.MULTILINE)
        assert not found[0], f"{self} does not begin with a command"
        return list(zip(found[1::2], found[2::2], strict=True))


class Page:
    """A page, and its blocks with a mark on the taken ones.

    Args:
        path: the path from the root of the repository.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.text = (ROOT / path).read_text()
        self.blocks = _blocks(path, self.text)
        self._taken: list[Block] = []

    def take(self, language: str, saying: str = "") -> Block:
        """Take the next block in this language.

        Args:
            language: the language of the block.
            saying: a text that the block must contain.
        """
        for block in self.left():
            if block.language == language and saying in block.text:
                self._taken.append(block)
                return block
        raise LookupError(f"{self.path} has no (further) block in {language} with {saying!r}")

    def take_all(self, language: str) -> list[Block]:
        """Take all remaining blocks in this language."""
        found = [block for block in self.left() if block.language == language]
        self._taken += found
        return found

    def left(self) -> list[Block]:
        """Return the blocks that no test has taken."""
        return [block for block in self.blocks if block not in self._taken]


def pages() -> list[str]:
    """Return every page for users, as a path from the root of the repository."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found += [ROOT / "spec/README.md", ROOT / "emulator/README.md"]
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
