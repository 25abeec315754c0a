"""Render the reference into reference/, for readers of the repository: `make reference`.

The pages in docs/reference/ have directives (`::: userlock.global_lock`) in the place of
docstrings, which the site renders and a code host does not.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/reference"
RENDERED = ROOT / "reference"
_DIRECTIVE = re.compile(r"^::: ([\w.]+)$")


def rendered() -> dict[str, str]:
    """Return the text of each file, by its name."""
    package = griffe.load("userlock", search_paths=[ROOT], docstring_parser="google")
    found = {}
    for page in sorted(PAGES.glob("*.md")):
        if "\n::: " in page.read_text():
            found[page.name] = _page(page, package)
    listed = "".join(f"- [{text.split(chr(10))[0][2:]}]({name})\n" for name, text in found.items())
    about = "Rendered by `make reference`; the pages are in [docs/reference](../docs/reference)."
    found["README.md"] = f"# Reference\n\n{about}\n\n{listed}"
    return found


def _page(page: Path, package: Any) -> str:
    """Return a page with docstrings for its directives."""
    title = page.read_text().split("\n", 1)[0]
    parts = [title, f"Rendered by `make reference`; [the page](../docs/reference/{page.name})."]
    for line in page.read_text().splitlines()[1:]:
        directive = _DIRECTIVE.match(line)
        if directive is not None:
            parts += _entry(directive[1], package[directive[1].removeprefix("userlock.")], 3)
        elif line.startswith("## ") and "`" not in line:
            parts.append(line)
    parts = [
        part
        for part, following in zip(parts, [*parts[1:], "## "], strict=True)
        if not (part.startswith("## ") and following.startswith("## "))
    ]
    return "\n\n".join(parts) + "\n"


def _entry(name: str, entry: Any, level: int) -> Iterator[str]:
    """Yield heading, docstring and members of a class, function or value."""
    if entry.is_alias:
        entry = entry.final_target
    yield f"{'#' * level} `{name}`"
    signature = _signature(name, entry)
    if signature:
        yield f"```python\n{signature}\n```"
    if entry.docstring is not None:
        yield from _docstring(entry.docstring)
    if entry.is_class:
        short = name.rpartition(".")[2]
        constructor = entry.members.get("__init__")
        if constructor is not None and constructor.docstring is not None:
            yield from _docstring(constructor.docstring)
        for member in entry.members.values():
            if not member.name.startswith("_") and not member.is_alias and member.docstring:
                yield from _entry(f"{short}.{member.name}", member, level + 1)


def _signature(name: str, entry: Any) -> str:
    """Return the signature of a function or a constructor; empty if there is none."""
    short = name.rpartition(".")[2]
    if entry.is_function:
        return str(entry.signature(return_type=True, name=short))
    if not entry.is_class:
        return ""
    constructor = entry.members.get("__init__")
    return "" if constructor is None else str(constructor.signature(return_type=False, name=short))


def _docstring(docstring: griffe.Docstring) -> Iterator[str]:
    """Yield the sections of a docstring."""
    for section in docstring.parse():
        value = section.value
        if isinstance(value, str):
            yield inspect.cleandoc(value)
        elif isinstance(value, list):
            title = section.title or section.kind.value.capitalize()
            items = []
            for each in value:
                name = getattr(each, "name", "") or str(getattr(each, "annotation", "") or "")
                text = " ".join(each.description.split())
                items.append(f"- `{name}`: {text}" if name else f"- {text}")
            yield f"**{title}:**"
            yield "\n".join(items)


def main() -> int:
    """Write the files, and remove those whose page is gone."""
    RENDERED.mkdir(exist_ok=True)
    files = rendered()
    for name, text in files.items():
        (RENDERED / name).write_text(text)
    for path in RENDERED.glob("*.md"):
        if path.name not in files:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
