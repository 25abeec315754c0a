"""Ways to the wire that bypass the model, for the tests of the gate."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from google.cloud import ndb
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.datastore_v1.types import entity as entity_types
from google.cloud.ndb import _datastore_api, _options
from google.cloud.ndb import model as ndb_model

import userlock
from tests.contract.ndb.actions import Elsewhere
from userlock.testing import allow_unlocked


class Simple(userlock.Model):
    """Written by anybody, and fenced."""

    _write_policy = userlock.WritePolicy.unsafe("there is nothing to get wrong")

    points = ndb.IntegerProperty(default=0)


def stored(cls: Any, name: str = "ann") -> int | None:
    """Return the points of an entity, as the server has it."""
    entity = cls.get_by_id(name, use_cache=False, use_global_cache=False)
    return None if entity is None else int(entity.points)


def is_missing(cls: Any, name: str) -> bool:
    """Return whether the server has no such entity; a cache may have what was rolled back."""
    return cls.get_by_id(name, use_cache=False, use_global_cache=False) is None


def error_of(future: Any) -> BaseException | None:
    """Return the error that a future ends with, if any."""
    future.wait()
    error: BaseException | None = future.exception()
    return error


def stale(cls: Any, elsewhere: Elsewhere) -> Any:
    """Return an object of an entity that somebody else has changed since it was read."""
    with allow_unlocked("arranging data"):
        cls(id="ann").put()
    old = cls.get_by_id("ann", use_cache=False)

    def change() -> None:
        with allow_unlocked("the other one of two"):
            entity = cls.get_by_id("ann")
            entity.points = 50
            entity.put()

    elsewhere(change)
    old.points = 1
    return old


def check_refusal(error: userlock.WriteNotFenced, key: Any, *, deleting: bool = False) -> None:
    """Check that an error names the entity, the call site, and the fix."""
    message = str(error)
    assert error.key == key
    assert re.search(r"/(test_gate\w*|gates)\.py:", str(error.put_at))
    assert str(error.put_at) in message
    assert f"{key!r} was not {'deleted' if deleting else 'put'}: " in message
    assert "past `put` and `delete` of its model" in message
    assert "  To fix it: write it with `entity.put()`, `key.delete()`" in message


# --- ways to the wire that pass by the model -----------------------------------------------


def entity_message(key: Any, points: int = 7) -> Any:
    """Return a message of google-cloud-datastore's, as any code could make it."""
    properties = {"points": entity_types.Value(integer_value=points)}
    return entity_types.Entity(key=key._key.to_protobuf(), properties=properties)


def mutation(operation: str, key: Any) -> Any:
    """Return a mutation as any code could make it."""
    found = key._key.to_protobuf() if operation == "delete" else entity_message(key)
    return datastore_types.Mutation({operation: found})


def request_of(*mutations: Any, **fields: Any) -> Any:
    """Return a CommitRequest as any code could make it."""
    client = ndb.get_context().client
    mode = datastore_types.CommitRequest.Mode
    return datastore_types.CommitRequest(
        project_id=client.project,
        database_id=client.database or "",
        mode=mode.TRANSACTIONAL if fields else mode.NON_TRANSACTIONAL,
        mutations=mutations,
        **fields,
    )


OPERATIONS = ["upsert", "insert", "update", "delete"]

Send = Callable[[Any], object]

#: Ways in which a request made by hand may be sent.
SENDERS: dict[str, Send] = {
    "stub.commit()": lambda request: ndb.get_context().client.stub.commit(request),
    "stub.commit(request=)": lambda request: ndb.get_context().client.stub.commit(request=request),
    "stub.commit.future()": lambda request: (
        ndb.get_context().client.stub.commit.future(request, timeout=5).result()
    ),
    "the raw message": lambda request: ndb.get_context().client.stub.commit(request._pb),
    "_datastore_api.stub()": lambda request: _datastore_api.stub().commit(request),
    # As ndb commits a transaction; else it would be tried again as a whole.
    "make_call": lambda request: _datastore_api.make_call("commit", request, retries=0).result(),
    "_datastore_commit": lambda request: _datastore_api._datastore_commit(
        list(request.mutations), request.transaction or None, retries=0
    ).result(),
}

#: Each way to send a mutation, and each mutation sent in one way.
BY_HAND = [
    *((name, "upsert") for name in SENDERS),
    *(("stub.commit()", operation) for operation in OPERATIONS if operation != "upsert"),
]


def ds_entity(key: Any, points: int = 7) -> Any:
    """Return what ndb makes of an entity before it is a message."""
    return ndb_model._entity_to_ds_entity(Simple(key=key, points=points))


_OPTIONS = _options.Options()

#: Ways past the model that lead through ndb; and whether they delete.
BELOW_THE_MODEL: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "_datastore_api.put": (lambda key: _datastore_api.put(ds_entity(key), _OPTIONS), False),
    "its put before userlock": (
        lambda key: _datastore_api.put.__wrapped__(ds_entity(key), _OPTIONS),
        False,
    ),
    "the base class's put before userlock": (
        lambda key: ndb_model.Model.put_async.__wrapped__(Simple(key=key, points=7)),
        False,
    ),
    "_datastore_api.delete": (lambda key: _datastore_api.delete(key._key, _OPTIONS), True),
    "its delete before userlock": (
        lambda key: _datastore_api.delete.__wrapped__(key._key, _OPTIONS),
        True,
    ),
    "Key.delete_async before userlock": (lambda key: type(key).delete_async.__wrapped__(key), True),
}
