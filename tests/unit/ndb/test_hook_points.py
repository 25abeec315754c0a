"""Where a release of ndb has no hook point any more, the import fails and says which."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from userlock.ndb.hooks import points
from userlock.ndb.hooks.points import OBJECTS, POINTS, missing_attributes, missing_points

HOOKS = Path(points.__file__).parent


@pytest.mark.parametrize("where", [where for where, _ in POINTS if "__init__" not in where])
def test_each_is_missed(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, name = f"google.cloud.{where}".replace(":", ".").rpartition(".")
    found = pkgutil.resolve_name(owner)
    for each in getattr(found, "__mro__", (found,)):
        if name in vars(each):
            monkeypatch.delattr(each, name)
    assert f"{where} is gone" in missing_points()


@pytest.mark.parametrize(
    ("where", "name"), [(where, name) for where, _, names in OBJECTS for name in names]
)
def test_each_attribute_of_an_object_is_missed(
    where: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = pkgutil.resolve_name(f"google.cloud.{where}")
    begin = cls.__init__

    def begin_without(self: object, *args: object) -> None:
        begin(self, *args)
        delattr(self, name)

    assert not missing_attributes()
    monkeypatch.setattr(cls, "__init__", begin_without)
    assert missing_attributes() == [f"{where}.{name} is gone"]


#: Code that makes another ndb of the one that is installed, and what is said of it then.
CHANGES = {
    "a function": (
        "del _datastore_api.lookup",
        "ndb._datastore_api:lookup is gone",
    ),
    "a class": (
        "del _datastore_api._LookupBatch",
        "ndb._datastore_api:_LookupBatch.idle_callback is gone",
    ),
    "a module": (
        "import sys; sys.modules['google.cloud.ndb._retry'] = None",
        "ndb._retry:is_transient_error is gone",
    ),
    "other parameters": (
        "_datastore_api.put = lambda entity, context, options: None",
        "ndb._datastore_api:put takes ('entity', 'context', 'options'), not ('entity', 'options')",
    ),
    "no function any more": (
        "_datastore_api.commit = 7",
        "ndb._datastore_api:commit takes (), not ('transaction', 'retries', 'timeout')",
    ),
    "an attribute of an object": (
        "_eventloop.EventLoop.__init__ = lambda self: None",
        "ndb._eventloop:EventLoop.idlers is gone",
    ),
    "an attribute of a query": (
        "_datastore_query._QueryIteratorImpl.__init__ = lambda self, query, raw=False: None",
        "ndb._datastore_query:_QueryIteratorImpl._batch is gone",
    ),
    "an object of other parameters": (
        "_datastore_api._LookupBatch.__init__ = lambda self: None",
        "ndb._datastore_api:_LookupBatch is not made of (None,): ",
    ),
    "an old google-cloud-datastore": (
        "del Mutation.ConflictResolutionStrategy",
        "datastore_v1.types.datastore:Mutation.ConflictResolutionStrategy is gone",
    ),
}


def imported(change: str, name: str = "global_lock") -> subprocess.CompletedProcess[str]:
    """A process that uses a name of userlock's, with another ndb."""
    lines = (
        "from google.cloud.ndb import _datastore_api, _datastore_query, _eventloop",
        "from google.cloud.datastore_v1.types.datastore import Mutation",
        change,
        "import userlock",
        f"userlock.{name}",
    )
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("what", CHANGES)
def test_the_import_fails_and_says_which(what: str) -> None:
    change, says = CHANGES[what]
    process = imported(change)
    last = process.stderr.strip().splitlines()[-1]
    assert process.returncode == 1
    assert last.startswith("ImportError: userlock cannot protect writes with google-cloud-ndb ")
    assert says in last
    assert last.endswith(
        "Install releases that userlock supports (google-cloud-ndb>=2.3,<3, "
        "google-cloud-datastore>=2.21), or a newer userlock."
    )


def test_unchanged_it_does_not() -> None:
    """The negative control."""
    process = imported("")
    assert (process.returncode, process.stderr) == (0, "")


def private_touches() -> Iterator[str]:
    """What the hooks use of ndb that is not public: "ndb.module:name"."""
    for path in HOOKS.glob("*.py"):
        tree = ast.parse(path.read_text())
        modules = {
            alias.asname or alias.name: f"ndb.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "google.cloud.ndb"
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = modules.get(node.value.id, "")
                if "_" in (module[4:5], node.attr[0]) and module:
                    yield f"{module}:{node.attr}"


def test_all_that_the_hooks_touch_is_on_the_list() -> None:
    names = {where.partition(":") for where, _ in POINTS}
    listed = {f"{module}:{name.partition('.')[0]}" for module, _, name in names}
    touched = set(private_touches())
    assert len(touched) > 20
    assert sorted(touched - listed) == []
