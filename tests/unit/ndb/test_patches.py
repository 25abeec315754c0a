"""The private points of ndb: few, listed, and checked at the import."""

from __future__ import annotations

import ast
import functools
import pkgutil
import re
from pathlib import Path

import google.cloud.ndb
import pytest

from userlock.ndb import patches
from userlock.ndb.patches import POINTS, missing_points

OURS = Path(patches.__file__).parent
NDB = Path(google.cloud.ndb.__file__).parent

_NAMES = list(POINTS)
_PRIVATE = re.compile(r"_[a-z]\w*", re.IGNORECASE)


# --- the list ---------------------------------------------------------------------------------


def test_there_are_at_most_12() -> None:
    assert 0 < len(POINTS) <= 12


def test_each_has_a_reason() -> None:
    for name, reason in POINTS.items():
        assert re.fullmatch(r"\w+:\w+(\.\w+)?", name)
        assert any(part.startswith("_") for part in re.split(r"[:.]", name)), "private"
        assert len(reason.split()) > 3


def test_the_installed_release_has_them_all() -> None:
    assert missing_points() == []


# --- one that is missing ----------------------------------------------------------------------


@pytest.mark.parametrize("name", _NAMES)
def test_each_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, attribute = f"google.cloud.ndb.{name}".replace(":", ".").rpartition(".")
    found = pkgutil.resolve_name(owner)
    for each in getattr(found, "__mro__", (found,)):
        if attribute in vars(each):
            monkeypatch.delattr(each, attribute)
    assert f"{name} is gone" in missing_points()


# --- all that is used is on the list ----------------------------------------------------------

#: Private names that ndb's documentation tells applications to use, or hands on as an argument.
PUBLISHED = {"_get_kind", "_name", "_options", "_validate", "_to_base_type", "_from_base_type"}

#: Attributes of ndb's event loops and contexts that are not for applications.
INTERNAL = {
    *("run0", "run1", "run_idle", "call_soon", "add_idle", "queue_call", "queue_rpc"),
    *("batches", "commit_batches", "on_commit_callbacks", "transaction_complete_callbacks"),
}


@functools.cache
def defined(folder: Path) -> frozenset[str]:
    """Return the private names that the files of a folder give to anything."""
    found: set[str] = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return frozenset(name for name in found if _PRIVATE.fullmatch(name))


def used(source: str) -> set[str]:
    """Return the private names that a file uses: of attributes, modules, in strings."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
            found |= {*(node.module or "").split(".")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {*re.split("[:.]", node.value)}
    return found & (defined(NDB) | INTERNAL | {path.stem for path in NDB.glob("_*.py")})


def unlisted(source: str) -> set[str]:
    """Return the private names of ndb's, not of ours, that a file uses and that are not listed."""
    listed = {part for name in _NAMES for part in re.split("[:.]", name)}
    return {
        name
        for name in used(source) - listed - PUBLISHED - defined(OURS)
        if _PRIVATE.fullmatch(name) or name in INTERNAL
    }


def test_each_used_name_is_on_the_list() -> None:
    found = {path.stem: unlisted(path.read_text()) for path in OURS.glob("*.py")}
    assert {file: names for file, names in found.items() if names} == {}


def test_each_name_on_the_list_is_used() -> None:
    """A point that nothing uses any more would refuse a release for nothing."""
    files = {path.stem: path.read_text() for path in OURS.glob("*.py")}
    source = "\n".join(text for name, text in files.items() if name != "patches")
    source += files["patches"].split(":= missing_points():\n")[-1]
    names = {name: re.split("[:.]", name)[-1] for name in _NAMES}
    assert [name for name, last in names.items() if last not in source] == []


@pytest.mark.parametrize(
    "code",
    [
        "from google.cloud.ndb import _retry",
        "from google.cloud.ndb._batch import get_batch",
        "context.eventloop.run1()",
        "context.transaction_complete_callbacks",
        "model._BaseValue(3)",
        "context._use_cache(key, None)",
        "getattr(entity, '_values')",
        "@around('_datastore_api:begin_transaction', '_datastore_api:_datastore_rollback')\n"
        "def begin(original): ...",
    ],
)
def test_a_use_is_seen(code: str) -> None:
    """The negative control."""
    assert unlisted(code)
