"""The private points of ndb: few, listed, and checked at the import."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    "a function": (
        "del _datastore_api._process_commit",
        "_datastore_api:_process_commit is gone",
    ),
    "a class": ("del tasklets._TaskletFuture", "tasklets:_TaskletFuture._advance_tasklet is gone"),
    "a method": (
        "del _cache.ContextCache.get_and_validate",
        "_cache:ContextCache.get_and_validate is gone",
    ),
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


def imported(change: str, name: str = "global_lock") -> subprocess.CompletedProcess[str]:
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


@pytest.mark.parametrize("name", ["Model", "LockService", "WriteNotFenced"])
def test_any_name_of_userlock_fails(name: str) -> None:
    process = imported("del _datastore_api.stub", name)
    assert "_datastore_api:stub is gone" in process.stderr


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


def _chain(node: ast.expr) -> tuple[str, ...] | None:
    """Return the names of `a.b.c`; None for an attribute of anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return (node.id, *reversed(names))


@functools.cache
def _names_of_ndb() -> frozenset[str]:
    """Return the private names that ndb gives to its functions, classes, attributes, arguments."""
    found: set[str] = set()
    for path in NDB.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
    return frozenset(name for name in found if _PRIVATE.fullmatch(name))


def _modules(tree: ast.Module) -> dict[str, str]:
    """Return a file's names for ndb's modules: its name to "" (the package itself) or theirs."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "google.cloud.ndb":
            for alias in node.names:
                if (NDB / f"{alias.name}.py").exists():
                    found[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module == "google.cloud":
            found |= {each.asname or each.name: "" for each in node.names if each.name == "ndb"}
        elif isinstance(node, ast.Import):
            found |= {
                each.asname: ""
                for each in node.names
                if each.name == "google.cloud.ndb" and each.asname
            }
    return found


def _imported_names(tree: ast.Module) -> Iterator[str]:
    """Give the names that a file imports from ndb's modules: "module:name"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("google.cloud.ndb."):
            module = str(node.module).removeprefix("google.cloud.ndb.")
            for alias in node.names:
                if module.startswith("_") or alias.name.startswith("_"):
                    yield f"{module}:{alias.name}"


def _in_modules(tree: ast.Module) -> Iterator[str]:
    """Give the private names that a file uses of ndb's modules: "module:name.name"."""
    modules = _modules(tree)
    for node in ast.walk(tree):
        chain = _chain(node) if isinstance(node, ast.Attribute) else None
        if chain is None or chain[0] not in modules:
            continue
        module = modules[chain[0]]
        names = [name for name in chain[1:] if not name.startswith("__")]
        if names and (module.startswith("_") or any(map(_PRIVATE.fullmatch, names))):
            yield f"{module}:{'.'.join(names)}"


def _replaced(tree: ast.Module) -> Iterator[str]:
    """Give the private names that a file replaces by `@around`: "module:name.name"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _chain(node.func) == ("around",):
            names = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
            yield from (name for name in names if re.search(r"(^|[:.])_[a-z]", name))


def _own_names(tree: ast.AST) -> set[str]:
    """Return the private names that a class, or a file, defines itself."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == "__slots__" for each in node.targets
        ):
            found |= {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}  # type: ignore[misc]
    return found


def _supers_of_our_own(tree: ast.Module) -> set[int]:
    """Return the `super()._name` in classes whose base is another one in the file, by `id`."""
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return {
        id(node)
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef)
        and all(isinstance(base, ast.Name) and base.id in classes for base in cls.bases)
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "super"
    }


def _of_objects(tree: ast.Module) -> Iterator[str]:
    """Give the private names of ndb's that a file uses of any objects, and in strings: "name".

    Of `self`, `cls` and `super()` only what neither their class nor another one in the file
    defines.
    """
    own = _own_names(tree)
    theirs = _names_of_ndb()
    supers = _supers_of_our_own(tree)
    slots = {
        id(constant)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == "__slots__"
        for constant in ast.walk(node.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in theirs:
            mine = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            mine = mine or id(node) in supers
            if not (mine and node.attr in own):
                yield node.attr
        elif isinstance(node, ast.Constant) and node.value in theirs and id(node) not in slots:
            yield str(node.value)


def _overridden(tree: ast.Module, module: Any) -> Iterator[str]:
    """Give the private names of ndb's classes that classes of ours redefine: "name"."""
    own = _own_names(tree)
    for cls in vars(module).values():
        if isinstance(cls, type) and cls.__module__ == module.__name__:
            for base in cls.__mro__[1:]:
                if base.__module__.startswith("google.cloud.ndb"):
                    both = vars(cls).keys() & vars(base).keys() & own
                    yield from (name for name in both if _PRIVATE.fullmatch(name))


@functools.cache
def used() -> tuple[str, ...]:
    """Return all private names of ndb that userlock uses."""
    found: set[str] = set()
    for path in OURS.glob("*.py"):
        tree = ast.parse(path.read_text())
        module = importlib.import_module(f"userlock.ndb.{path.stem}")
        found |= {*_in_modules(tree), *_imported_names(tree), *_of_objects(tree)}
        found |= {*_replaced(tree), *_overridden(tree, module)}
    return tuple(sorted(name for name in found if "_userlock_" not in name))


def is_listed(name: str) -> bool:
    """Return whether a private name is a point, part of one, or below one."""
    module, colon, names = name.rpartition(":")
    if not colon:
        return any(names in re.split(r"[:.]", point) for point in _NAMES)
    if not names:
        return any(point.startswith(f"{module}:") for point in _NAMES)
    return any(
        f"{point}.".startswith(f"{name}.") or name.startswith(f"{point}.") for point in _NAMES
    )


#: Private names that ndb's documentation tells applications to use, with their class.
PUBLISHED = {"_get_kind": google.cloud.ndb.Model, "_name": google.cloud.ndb.Property}


#: An argument, under which ndb hands on the options of a call: no point that could be missing.
_ARGUMENT = "_options"


@pytest.mark.parametrize("name", [name for name in used() if name != _ARGUMENT])
def test_each_used_name_is_on_the_list(name: str) -> None:
    if name in PUBLISHED:
        assert name in str(PUBLISHED[name].__doc__)
    else:
        assert is_listed(name)


def test_each_published_name_is_used() -> None:
    assert {*PUBLISHED} <= {*used()}


def test_each_name_on_the_list_is_used() -> None:
    """A point that nothing uses any more would refuse a release for nothing."""
    names = {*used()}
    last = {re.split(r"[:.]", name)[-1] for name in names}
    assert [name for name in _NAMES if name not in names and name.split(".")[-1] not in last] == []


#: Code of a file, and the private name that it uses.
USES = {
    "from google.cloud.ndb import _retry\n_retry.is_transient_error(error)": (
        "_retry:is_transient_error"
    ),
    "from google.cloud.ndb import _retry as r\nr.retry_async": "_retry:retry_async",
    "from google.cloud.ndb._eventloop import run": "_eventloop:run",
    "from google.cloud.ndb.model import _entity_to_ds_entity": "model:_entity_to_ds_entity",
    "from google.cloud.ndb import model\nmodel._BaseValue(3)": "model:_BaseValue",
    "from google.cloud import ndb\nndb._batch.get_batch": ":_batch.get_batch",
    "import google.cloud.ndb as n\nn.Query._fetch_async": ":Query._fetch_async",
    "class A:\n    def f(self):\n        self._kind_map": "_kind_map",
    "class A(ndb.Model):\n    def _populate(self):\n        super()._populate()": "_populate",
    "context._use_cache(key, None)": "_use_cache",
    "getattr(entity, '_values')": "_values",
    "@around('_datastore_api:begin_transaction')\ndef begin(original): ...": (
        "_datastore_api:begin_transaction"
    ),
}


@pytest.mark.parametrize("code", USES)
def test_a_use_is_seen(code: str) -> None:
    """The negative control."""
    tree = ast.parse(code)
    found = {*_in_modules(tree), *_imported_names(tree), *_of_objects(tree), *_replaced(tree)}
    assert USES[code] in found
    assert not is_listed(USES[code])


@pytest.mark.parametrize(
    "code",
    [
        "from google.cloud.ndb import tasklets\ntasklets.Future.exception(future)",
        "from google.cloud import ndb\nndb.get_context().cache",
        "class A:\n    def f(self):\n        self._key = 1\n    def g(self):\n        self._key",
        "class A:\n    def _done(self): ...\nclass B(A):\n    def f(self): super()._done()",
        "entity._userlock_version",
    ],
)
def test_public_names_and_our_own_are_not_seen(code: str) -> None:
    tree = ast.parse(code)
    assert {*_in_modules(tree), *_imported_names(tree), *_of_objects(tree)} <= {"_userlock_version"}
