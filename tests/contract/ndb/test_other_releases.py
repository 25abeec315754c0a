"""The import with an ndb that lacks a point, or that a tracer has wrapped."""

from __future__ import annotations

import subprocess

import pytest

from tests.interpreters import run_python

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
    return run_python("-W", "ignore", "-c", "\n".join(lines))


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
    (model.Model, "put_async"), (_datastore_api, "lookup"),
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
    "_entity_from_protobuf", "Model._prepare_for_put", "Model._put_async", "lookup",
    "Key.delete_async", "Client.context"} <= {*CALLS}, CALLS
"""


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
