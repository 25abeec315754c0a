"""Data from a store or a request never determines the types of the created objects."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for folder in ("userlock", "emulator", "sample_app")
    for path in (ROOT / folder).rglob("*.py")
)
#: Modules whose readers can be made to run code by their input.
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"}
CALLS = {"eval", "exec"}
#: A file without these words is not parsed.
WORDS = re.compile(rf"\b(?:{'|'.join([*MODULES, *CALLS, 'yaml'])})\b")


def means_of_running(source: str) -> list[str]:
    """Return the names in a module that could run code from input."""
    found: list[str] = []
    if not WORDS.search(source):
        return found
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [each.name for each in names if each.name.split(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                found.append(module)
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                found.append(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="yaml"), attr="load" as name)):
                found.append(f"yaml.{name}")
    return found


def test_nothing_is_unpickled() -> None:
    found = {str(path): means_of_running(path.read_text()) for path in FILES}
    assert {path: means for path, means in found.items() if means} == {}


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from marshal import loads", "eval(x)", "yaml.load(x)", "import os, shelve"],
)
def test_unsafe_imports_are_found(source: str) -> None:
    assert len(means_of_running(source)) == 1
