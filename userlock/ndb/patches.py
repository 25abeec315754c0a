"""The private points of google-cloud-ndb that userlock needs, and how its functions are replaced.

Written for google-cloud-ndb 2.3 to 2.7. If the installed release lacks a point, the import of
`userlock.ndb` fails and names it. A write that takes another way through ndb has no ticket,
and the gate refuses it (`stub`).
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import google.cloud.ndb as ndb_package
from google.cloud.ndb import _datastore_api, _options
from google.cloud.ndb import model as ndb_model

from userlock.ndb.capabilities import installed_release
from userlock.ndb.commits import path_of as path_of_message
from userlock.ndb.wire import message_of

#: Private names of ndb, below `google.cloud.ndb`, and the need for each.
POINTS = {
    "_datastore_api:stub": "any client's stub, also of no `ndb.Client`, is gated",
    "_datastore_api:put": "the ticket of a put is written into the key that it sends",
    "_datastore_api:delete": "likewise, of a delete",
    "_datastore_api:lookup": "a look-up knows its caller, and what it may be answered from",
    "_datastore_api:begin_transaction": "a transaction begins with its first RPC",
    "_datastore_api:_process_commit": "each write of a commit gets an error of its own",
    "_cache:global_cache_key": "the global cache's keys are without tickets",
    "_cache:ContextCache.get_and_validate": "under a lock, a cached entity may be old",
    "_transaction:transaction_async_": "writes land before; its error is the real one",
    "model:_entity_from_protobuf": "a message becomes an object, and its stamp goes along",
    "model:Model._prepare_for_put": "the last step before the properties are read",
    "_eventloop:EventLoop.queue_rpc": "a loop waits for no RPC that was interrupted, and is woken",
}


def missing_points() -> list[str]:
    """Return what is wrong with the points of the installed release."""
    missing = []
    for name in POINTS:
        try:
            found = pkgutil.resolve_name(f"google.cloud.ndb.{name}")
        except Exception:
            found = None
        if not callable(found):
            gone = "is gone" if found is None else "is not a function any more"
            missing.append(f"{name} {gone}")
    return missing


if missing := missing_points():
    raise ImportError(
        f"userlock cannot protect writes with google-cloud-ndb {installed_release()}: "
        f"{'; '.join(missing)}. Install google-cloud-ndb 2.3 to 2.7, with which it is tested, "
        f"or a newer userlock"
    )

_KEY: Any = ndb_package.Model.key


def key_of(entity: Any) -> Any:
    """Return the key of an entity, whatever properties an application has."""
    return _KEY.__get__(entity)


def kind_of(ndb_key: Any) -> str:
    kind: str = ndb_key.flat()[-2]  # `kind()` makes a deep copy of the path, as `id()` does
    return kind


def path_of(ndb_key: Any) -> tuple[Any, ...]:
    """Return kind, id, kind, id, ... of a key; the last id may be missing."""
    path: tuple[Any, ...] = ndb_key.flat()
    return path[:-1] if path[-1] is None else path


def name_of(ndb_key: Any) -> tuple[Any, ...]:
    """Return what tells a complete key from others, hashed in a tenth of the time."""
    database, namespace = ndb_key.database() or "", ndb_key.namespace() or ""
    return ndb_key.project(), database, namespace, ndb_key.flat()


def look_up(ndb_key: Any) -> Callable[[], Any]:
    """Begin a look-up, in one RPC with those of this turn; return a function that waits for it.
    As `ndb_key.get_async()` without caches, in two thirds of its calls."""
    message = _datastore_api.lookup(ndb_key._key, _options.ReadOptions())

    def entity() -> Any:
        found = message.result()
        return ndb_model._entity_from_protobuf(found) if hasattr(found, "_pb") else None

    return entity


def name_in(raw_key: Any) -> tuple[Any, ...]:
    """Return the same for a (raw) key."""
    partition = raw_key.partition_id
    path = path_of_message(raw_key)
    return partition.project_id, partition.database_id, partition.namespace_id, path


def is_complete(ndb_key: Any) -> bool:
    return ndb_key is not None and ndb_key.flat()[-1] is not None


def raw_key_of(ndb_key: Any) -> Any:
    return message_of(ndb_key._key)


def ndb_key_of(raw_key: Any) -> Any:
    """Return the ndb key of a (raw) key; its path if it is malformed."""
    path, partition = path_of_message(raw_key), raw_key.partition_id
    try:
        whole = (*path, None) if len(path) % 2 else path
        return ndb_package.Key(
            *whole, app=partition.project_id, namespace=partition.namespace_id or None
        )
    except Exception:
        return path


def classes_of(kind: str) -> Iterator[Any]:
    """Yield all classes of a kind, of whatever base."""
    bases = [ndb_package.Model]
    while bases:
        below = bases.pop().__subclasses__()
        bases += below
        yield from (each for each in below if each._get_kind() == kind)


def instead(*names: str) -> Callable[[Callable[..., Any]], Any]:
    """As `around`, of a function (no method), by one that gets the original first."""
    original = pkgutil.resolve_name(f"google.cloud.ndb.{names[0]}")
    return lambda function: around(*names)(functools.partial(function, original))


def around(*names: str) -> Callable[[Any], Any]:
    """Replace a function of ndb, under each of its names, by one that calls the original as its
    own `__wrapped__`."""

    def replace(function: Any) -> Any:
        for name in names:
            owner, _, attribute = f"google.cloud.ndb.{name}".replace(":", ".").rpartition(".")
            place = pkgutil.resolve_name(owner.rstrip("."))
            if name == names[0]:
                functools.update_wrapper(function, getattr(place, attribute))
            setattr(place, attribute, function)
        return function

    return replace
