"""The private points of ndb: few, listed, and checked at the import."""

from __future__ import annotations

import ast
import functools
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import google.cloud.ndb
import pytest

from userlock.ndb import patches
from userlock.ndb.patches import POINTS, missing_points

OURS = Path(patches.__file__).parent
NDB = Path(google.cloud.ndb.__file__).parent

_NAMES = [point.name for point in POINTS]
_PRIVATE = re.compile(r"_[a-z]\w*", re.IGNORECASE)


# --- the list ---------------------------------------------------------------------------------


def test_there_are_at_most_15() -> None:
    assert 0 < len(POINTS) <= 15


def test_each_is_named_once_and_has_a_reason() -> None:
    assert len({*_NAMES}) == len(POINTS)
    for point in POINTS:
        assert re.fullmatch(r"\w+:\w+(\.\w+)?", point.name)
        assert any(part.startswith("_") for part in re.split(r"[:.]", point.name)), "private"
        assert len(point.reason.split()) > 3


def test_the_installed_release_has_them_all() -> None:
    assert missing_points() == []


# --- one that is missing ----------------------------------------------------------------------

#: Attributes of objects that their classes do not have.
_OF_OBJECTS = {"key:Key._key"}


@pytest.mark.parametrize("name", _NAMES)
def test_each_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, attribute = f"google.cloud.ndb.{name}".replace(":", ".").rpartition(".")
    found = pkgutil.resolve_name(owner)
    for each in getattr(found, "__mro__", (found,)):
        if attribute in vars(each):
            monkeypatch.delattr(each, attribute)
    if name in _OF_OBJECTS:
        monkeypatch.setattr(found, "__new__", lambda cls, *args, **kwargs: object.__new__(cls))
    assert f"{name} is gone" in missing_points()


#: Code that changes the installed ndb, and the message about it.
CHANGES = {
    "a module": (
        "import sys; sys.modules['google.cloud.ndb._datastore_api'] = None",
        "_datastore_api:stub is gone; _datastore_api:put is gone; _datastore_api:delete is gone",
    ),
    "no function any more": (
        "_datastore_api.stub = 7",
        "_datastore_api:stub is not a function any more",
    ),
    "several": (
        "del _datastore_api.put, _cache.global_cache_key",
        "_datastore_api:put is gone; _cache:global_cache_key is gone",
    ),
}


def imported(change: str, name: str = "Model") -> subprocess.CompletedProcess[str]:
    """Run a process that uses a name of userlock's, with another ndb."""
    lines = (
        "from google.cloud.ndb import _cache, _datastore_api, _transaction, key, model, tasklets",
        change,
        "import userlock",
        f"userlock.{name}",
    )
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(lines)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("what", CHANGES)
def test_the_import_fails_and_names_them(what: str) -> None:
    change, says = CHANGES[what]
    process = imported(change)
    last = process.stderr.strip().splitlines()[-1]
    assert process.returncode == 1
    assert last.startswith("ImportError: userlock cannot protect writes with google-cloud-ndb ")
    assert says in last
    assert "Install google-cloud-ndb 2.3 to 2.7" in last
    assert last.endswith("or a newer userlock")


def test_an_unchanged_ndb_is_imported() -> None:
    """The negative control."""
    process = imported("")
    assert (process.returncode, process.stderr) == (0, "")


# --- an ndb that a tracer has wrapped ---------------------------------------------------------

_TRACED = """
import google.cloud.ndb

def traced(function):
    def call(*args, **kwargs):  # without functools.wraps
        CALLS.append(function.__qualname__)
        return function(*args, **kwargs)
    return call

CALLS = []
for owner, name in (
    (_datastore_api, "stub"), (_datastore_api, "put"), (_datastore_api, "delete"),
    (_datastore_api, "_process_commit"), (_cache, "global_cache_key"),
    (_cache.ContextCache, "get_and_validate"), (_transaction, "transaction_async_"),
    (model, "_entity_from_protobuf"), (model.Model, "_prepare_for_put"),
    (model.Model, "_put_async"), (model.Model, "put_async"), (key.Key, "get_async"),
    (key.Key, "delete_async"), (google.cloud.ndb.Client, "context"),
    (model, "put_multi_async"), (model, "delete_multi_async"),
):
    setattr(owner, name, traced(getattr(owner, name)))
model.Model._get_or_insert_async = classmethod(traced(model.Model._get_or_insert_async.__func__))
"""

#: Writes go out with their base versions, through all those functions.
_WRITING = """
from benchmarks import instant
from benchmarks.models import LOCK_ID, LockedLearner, message
from userlock.stores import MemoryStore

userlock.configure(service=userlock.LockService(MemoryStore()))
datastore = instant.InstantDatastore()
sent = []
answer = datastore.commit

class Commit:
    def future(self, request, timeout, metadata):
        sent.append(request)
        return answer.future(request, timeout, metadata)

datastore.commit = Commit()
client = instant.client(datastore)
with client.context(), userlock.global_lock(LOCK_ID):
    datastore.lookups.append(instant.looked_up([message(LockedLearner, LOCK_ID)]))
    learner = google.cloud.ndb.Key(LockedLearner, LOCK_ID).get()
    learner.put()
    learner.key.delete()
versions = [request.mutations[0].base_version for request in sent]
assert versions == [instant._VERSION, instant._VERSION + 1], versions
assert {"stub", "put", "delete", "ContextCache.get_and_validate",
    "_entity_from_protobuf", "Model._prepare_for_put", "Model._put_async", "Key.get_async",
    "Key.delete_async", "Client.context"} <= {*CALLS}, CALLS
"""


def test_a_tracer_is_not_taken_for_another_release() -> None:
    """It has other names and parameters, and no `__wrapped__`; it calls ndb's own function."""
    process = imported(_TRACED)
    assert (process.returncode, process.stderr) == (0, "")


def test_with_a_tracer_writes_are_fenced() -> None:
    process = imported(_TRACED, f"Model\n{_WRITING}")
    assert (process.returncode, process.stderr) == (0, "")


def test_an_object_that_can_be_called_is_a_function() -> None:
    """For instance one of wrapt's, or of functools'."""
    names = ("stub", "put", "delete", "_process_commit")
    change = "\n".join(
        f"_datastore_api.{name} = functools.partial(_datastore_api.{name})" for name in names
    )
    process = imported(f"import functools\n{change}")
    assert (process.returncode, process.stderr) == (0, "")


# --- all that is used is on the list ----------------------------------------------------------

#: Private names that ndb's documentation tells applications to use, or hands on as an argument.
PUBLISHED = {"_get_kind", "_name", "_options", "_validate", "_to_base_type", "_from_base_type"}


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
    return found & (defined(NDB) | {path.stem for path in NDB.glob("_*.py")})


def unlisted(source: str) -> set[str]:
    """Return the private names of ndb's, not of ours, that a file uses and that are not listed."""
    listed = {part for name in _NAMES for part in re.split("[:.]", name)}
    return {
        name
        for name in used(source) - listed - PUBLISHED - defined(OURS)
        if _PRIVATE.fullmatch(name)
    }


def test_each_used_name_is_on_the_list() -> None:
    found = {path.stem: unlisted(path.read_text()) for path in OURS.glob("*.py")}
    assert {file: names for file, names in found.items() if names} == {}


def test_each_name_on_the_list_is_used() -> None:
    """A point that nothing uses any more would refuse a release for nothing."""
    files = {path.stem: path.read_text() for path in OURS.glob("*.py")}
    source = "\n".join(text for name, text in files.items() if name != "patches")
    source += files["patches"].split("check_points()\n")[-1]
    names = {name: re.split("[:.]", name)[-1] for name in _NAMES}
    assert [name for name, last in names.items() if last not in source] == []


@pytest.mark.parametrize(
    "code",
    [
        "from google.cloud.ndb import _retry",
        "from google.cloud.ndb._eventloop import run",
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
