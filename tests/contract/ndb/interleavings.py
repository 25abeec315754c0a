"""Ways to read an entity and to write it back, and changes in between."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from google.cloud import ndb

import userlock
from tests.contract.ndb.models import Learner

Key = Any
Entity = Any


def _put_before(key: Key) -> Entity:
    entity = key.get()
    entity.name = "put before"
    entity.put()
    return entity


def _committed_before(key: Key) -> Entity:
    return ndb.transaction(lambda: _put_before(key))


def _deleted_and_created_again(key: Key) -> Entity:
    points = key.get().points
    key.delete()
    entity = Learner(key=key, points=points)
    entity.put()
    return entity


def _query() -> Any:
    return Learner.query(Learner.points == 0)


#: How an entity, with no points, is read under its lock; the table in `ways` has more.
READS: dict[str, Callable[[Key], Entity]] = {
    "eventually consistent": lambda key: key.get(read_consistency=ndb.EVENTUAL, use_cache=False),
    "eventually consistent query": lambda key: _query().fetch(read_consistency=ndb.EVENTUAL)[0],
    "earlier transaction": lambda key: ndb.transaction(key.get),
    "read-only transaction": lambda key: ndb.transaction(key.get, read_only=True),
    "put before": _put_before,
    "put in a transaction before": _committed_before,
    "deleted and created again": _deleted_and_created_again,
    "pickle": lambda key: pickle.loads(pickle.dumps(key.get(use_cache=False))),  # noqa: S301
}


@ndb.tasklet
def _put_in_tasklet(entity: Entity) -> Any:
    yield entity.put_async()


def _put_in_batch(entity: Entity) -> None:
    others = [Learner(id=f"other-{number}") for number in range(3)]
    futures = ndb.put_multi_async([*others[:1], entity, *others[1:]])
    for future in futures:
        future.wait()
    assert [other.key.get(use_cache=False) is not None for other in others] == [True] * 3
    futures[1].get_result()


def _delete_in_transaction(entity: Entity) -> None:
    ndb.transaction(entity.key.delete)


#: How it is put back.
PUTS: dict[str, Callable[[Entity], Any]] = {
    "put": lambda entity: entity.put(),
    "put_async": lambda entity: entity.put_async().get_result(),
    "put_multi": lambda entity: ndb.put_multi([entity]),
    "put_multi_async": lambda entity: ndb.put_multi_async([entity])[0].get_result(),
    "put in a batch": _put_in_batch,
    "put in a tasklet": lambda entity: _put_in_tasklet(entity).get_result(),
    "put in a transaction": lambda entity: ndb.transaction(entity.put),
}

#: How it is deleted, when it is in the context cache.
DELETES: dict[str, Callable[[Entity], Any]] = {
    "delete": lambda entity: entity.key.delete(),
    "delete_async": lambda entity: entity.key.delete_async().get_result(),
    "delete_multi": lambda entity: ndb.delete_multi([entity.key]),
    "delete in a transaction": _delete_in_transaction,
}


def _change(key: Key) -> None:
    other = key.get()
    other.points = 5
    other.put()


def _delete(key: Key) -> None:
    key.delete()


def _replace(key: Key) -> None:
    key.delete()
    Learner(key=key, points=5).put()


def _put_unchanged_but_for_the_name(key: Key) -> None:
    other = key.get()
    other.name = "somebody else"
    other.put()


#: Changes by another request in between, under the lock as far as it knows.
RIVALS: dict[str, Callable[[Key], None]] = {
    "changes it": _change,
    "changes another property": _put_unchanged_but_for_the_name,
    "deletes it": _delete,
    "deletes it and creates it again": _replace,
}


def under_lock(action: Callable[[Key], None], key: Key) -> Callable[[], None]:
    """Write as another process, which takes the lock first."""

    def run() -> None:
        with userlock.global_lock(key.id()):
            action(key)

    return run
