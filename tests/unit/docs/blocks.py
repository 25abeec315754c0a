"""The Python blocks of the documentation as modules, for type checkers.

A reader reads a page from its top: a name that a block does not define is that of a block above
it. Everything else a page takes as given: the modules
here, and otherwise anything at all. So are modules of the reader's own, such as `app`.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.util
import re
import symtable
from collections.abc import Iterator
from typing import NamedTuple

from tests.documents import Page, pages

#: The modules that pages use without an import.
GIVEN = {
    name: f"import {name}"
    for name in (
        "asyncio",
        "contextlib",
        "fastapi",
        "flask",
        "os",
        "pytest",
        "userlock",
        "userlock_emulator",
    )
} | {"ndb": "from google.cloud import ndb"}
UNKNOWN = "from anything import {}"


class Module(NamedTuple):
    """A block as a module.

    Attributes:
        name: the name of the module.
        source: where the block is.
        text: the lines that define what the block needs, then the block.
    """

    name: str
    source: str
    text: str


def modules() -> Iterator[Module]:
    """Yield each Python block of each page."""
    for path in pages():
        defined = dict(GIVEN)  # each name, and the line that defines it
        for block in (each for each in Page(path).blocks if each.language == "python"):
            name = re.sub(r"\W", "_", f"{path.removesuffix('.md').lower()}_{block.line}")
            bound, used = names(block.text)
            needed = sorted(each for each in used if not hasattr(builtins, each))
            # What a block defines anew has another type there.
            lines = [
                UNKNOWN.format(each) if each in bound else defined.get(each) for each in needed
            ]
            head = [line or UNKNOWN.format(each) for line, each in zip(lines, needed, strict=True)]
            yield Module(name, str(block), "".join(f"{line}\n" for line in head) + block.text)
            for each in bound - used:
                defined.setdefault(each, f"from {name} import {each}")
            defined |= definitions(block.text, name)


def stubs() -> Iterator[tuple[str, str]]:
    """Yield the file of each module that only the reader has, with its content."""
    found = {"anything"}
    for module in modules():
        for statement in ast.walk(ast.parse(module.text)):
            if isinstance(statement, ast.ImportFrom) and statement.module is not None:
                found.add(statement.module)
    blocks = {module.name for module in modules()}
    for name in found - blocks:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            yield f"{name.replace('.', '/')}/__init__.pyi", "def __getattr__(name: str): ...\n"


def names(text: str) -> tuple[set[str], set[str]]:
    """Return the names that a module defines, and those that it uses without."""
    bound: set[str] = set()
    used: set[str] = set()
    code = compile(text, "a block", "exec", dont_inherit=True)
    for each in dis.get_instructions(code):  # in the order of the code
        if each.opname == "STORE_NAME":
            bound.add(each.argval)
        elif each.opname == "LOAD_NAME" and each.argval not in bound:
            used.add(each.argval)
    tables = symtable.symtable(text, "a block", "exec").get_children()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        inside = {each.get_name() for each in table.get_symbols() if each.is_global()}
        used |= inside - bound
    return bound, used


def definitions(text: str, module: str) -> dict[str, str]:
    """Return the classes, functions and modules that a block has, each with an import of it."""
    found = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[statement.name] = f"from {module} import {statement.name}"
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                one = type(statement)(**{**vars(statement), "names": [alias]})
                found[alias.asname or alias.name.partition(".")[0]] = ast.unparse(one)
    return found
