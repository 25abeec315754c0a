"""The functions of ndb that userlock replaces, and its part in the release of locks.

`model` imports this file for its effect. Each function gets the one that it
replaces first.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from google.cloud import ndb
from google.cloud.ndb import model as ndb_model
from google.cloud.ndb import tasklets

from userlock.callsite import CallSite, here
from userlock.lock.configuration import defaults
from userlock.lock.held_lock import register_participant
from userlock.lock.scope import current_scope
from userlock.ndb.checks import cached_is_good, cached_miss_is_good
from userlock.ndb.context import current_context, uses_datastore
from userlock.ndb.ledger import ledger
from userlock.ndb.patches import around, key_of, kind_of
from userlock.ndb.pending import setting
from userlock.ndb.policies import is_watched, watched_class
from userlock.ndb.provenance import NO_LOCKS, NOTHING_HELD, Origin, Stamped, orders, stamp_read
from userlock.ndb.stub import Gate, GatedStub, gated, settling
from userlock.ndb.transactions import DatastoreParticipant, leave_context, running
from userlock.ndb.wire import QuickKey, TicketedKey, number_in
from userlock.ndb.writes import (
    Delete,
    key_to_send,
    results_of,
    together,
    writing,
)

if hasattr(ndb_model, "_userlock_installed"):
    raise RuntimeError("userlock is installed in ndb already")
ndb_model._userlock_installed = True

register_participant(DatastoreParticipant())

# --- the gate -------------------------------------------------------------------------------

ndb.Client.stub = GatedStub()


@around("_datastore_api:stub")
def _gated_stub(stub: Any) -> Any:
    def gated_stub() -> Any:
        found = stub()
        return found if type(found) is Gate else gated(found)

    return gated_stub


around("_datastore_api:_process_commit")(settling)

# --- reads ----------------------------------------------------------------------------------


@around("model:_entity_from_protobuf")
def _stamped_entity(from_protobuf: Any) -> Any:
    def entity_of(message: Any) -> Any:
        """Stamp an entity. One that did not come as Datastore's answer was read under no lock."""
        entity = from_protobuf(message)
        if isinstance(entity, Stamped):
            stamp = vars(message).get("_userlock_stamp")
            version, asked, place = stamp or (number_in(message._pb), NOTHING_HELD, None)
            read = stamp_read(entity, key_of(entity), version, asked, place)
            if version > 0 or (stamp is not None and version == 0):
                ledger().saw(read)
        return entity

    return entity_of


@around("_datastore_api:lookup")
def _quick_lookup(lookup: Any) -> Any:
    def look_up(key: Any, options: Any) -> Any:
        path = key.flat_path
        watched = is_watched(path[len(path) % 2 - 2])
        return lookup(QuickKey.like(key) if watched else key, options)

    return look_up


@around("_cache:ContextCache.get_and_validate")
def _get_from_context_cache(get: Any) -> Any:
    def get_if_good(cache: Any, key: Any) -> Any:
        entity = get(cache, key)
        if not _is_good(key, entity):
            del cache[key]
            raise KeyError(key)
        return entity

    return get_if_good


def _is_good(ndb_key: Any, entity: Any) -> bool:
    """Return whether the context cache may answer with this. Under a lock it may be outdated."""
    if entity is None:
        cls = watched_class(kind_of(ndb_key))
        return cls is None or cached_miss_is_good(cls, ndb_key)
    return not isinstance(entity, Stamped) or cached_is_good(entity)


@around("key:Key.get_async")
def _get_with_place(get_async: Any) -> Any:
    def get_noting_place(ndb_key: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the call site of a look-up. Under a lock, bypass the global cache."""
        if not is_watched(kind_of(ndb_key)):
            return get_async(ndb_key, *args, **kwargs)
        get = functools.partial(get_async, ndb_key, *args)
        context = current_context()
        scope = current_scope()
        settings = defaults.settings if scope is None else scope.settings
        held = NO_LOCKS if scope is None else scope.held
        place = here() if settings.capture_places else None
        asked = Origin(held, None, next(orders))
        if context is None or context.global_cache is None:
            future = get(**kwargs)
        elif not uses_datastore(context, ndb_key, kwargs):
            future = get(**kwargs)
            if context.datastore_policy(ndb_key) is False:  # its entities live there
                future.add_done_callback(functools.partial(_note_holdings, asked))
        elif held:
            future = get(**_past_the_global_cache(kwargs))
        else:
            future = _get_with_version(ndb_key, get, kwargs)
        if place is not None or held:
            future.add_done_callback(functools.partial(_note_reader, place, asked))
        return future

    return get_noting_place


@tasklets.tasklet
def _get_with_version(ndb_key: Any, get: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    entity = yield get(**kwargs)
    stamp = entity._userlock_stamp if isinstance(entity, Stamped) else None
    if stamp is not None and not stamp.version and stamp.order == NOTHING_HELD.order:
        # From a process without userlock, through the global cache. Its put could not be fenced.
        current_context().cache.pop(ndb_key, None)
        entity = yield get(**_past_the_global_cache(kwargs))
    return entity


def _past_the_global_cache(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a look-up that goes to Datastore itself."""
    options = kwargs.get("_options")
    if options is None:
        return {**kwargs, "use_global_cache": False}
    return {**kwargs, "_options": options.copy(use_global_cache=False)}


def _note_holdings(asked: Origin, future: Any) -> None:
    """Note the locks of a look-up in the global cache, where that is all there is."""
    if tasklets.Future.exception(future) is None:
        entity = future.result()
        stamp = entity._userlock_stamp if isinstance(entity, Stamped) else None
        if stamp is not None and stamp.order == NOTHING_HELD.order:
            entity._userlock_stamp = stamp._replace(held=asked.held, order=asked.order)


def _note_reader(place: CallSite | None, asked: Origin, future: Any) -> None:
    """Note the call site of a look-up, and the locks that its caller has held ever since.

    The request may have been sent by other code, with another scope, that ran the event loop.
    """
    if tasklets.Future.exception(future) is not None:
        return
    entity = future.result()
    before = entity._userlock_stamp if isinstance(entity, Stamped) else None
    if before is None:
        return
    stamp = before if before.place is not None else before._replace(place=place)
    if stamp.order > asked.order and stamp.held is not asked.held:
        held = {lock_id: tenure for lock_id, tenure in asked.held.items() if tenure.held}
        stamp = stamp._replace(held={**stamp.held, **held})
    if stamp is not before:
        entity._userlock_stamp = stamp
        ledger().saw(stamp)


# --- writes ---------------------------------------------------------------------------------


@around("model:Model.put_async")
def _put_of_its_class(put_async: Any) -> Any:
    def put_of_its_class(entity: Any, **kwargs: Any) -> Any:
        """Turn `ndb.Model.put_async(entity)`, past its own class, into a put of that class."""
        if isinstance(entity, Stamped):
            current = writing()
            if current is None or current.entity is not entity:
                checked: Any = entity
                return checked._userlock_put_async(**kwargs)
        return put_async(entity, **kwargs)

    return put_of_its_class


@around("key:Key.delete_async")
def _delete_if_allowed(delete_async: Any) -> Any:
    def delete_if_allowed(ndb_key: Any, *args: Any, **kwargs: Any) -> Any:
        """Delete as the model's policy says, and build on what was read."""
        cls = watched_class(kind_of(ndb_key))
        context = current_context()
        if cls is None or context is None:
            return delete_async(ndb_key, *args, **kwargs)
        return Delete(cls, ndb_key, here(), context).begin(delete_async, ndb_key, *args, **kwargs)

    return delete_if_allowed


@around("_datastore_api:put")
def _ticketed_put(put: Any) -> Any:
    def put_with_ticket(entity: Any, options: Any) -> Any:
        entity.key = key_to_send(entity.key, entity)
        return put(entity, options)

    return put_with_ticket


@around("_datastore_api:delete")
def _ticketed_delete(delete: Any) -> Any:
    return lambda key, options: delete(key_to_send(key), options)


@around("_cache:global_cache_key")
def _cache_key_without_ticket(cache_key: Any) -> Any:
    return lambda key: cache_key(key.plain if type(key) is TicketedKey else key)


def delete(ndb_key: Any, *, unguarded: str, **options: Any) -> None:
    """Delete an entity without a check, and wait: `key.delete()`. The delete is fenced.

    Args:
        ndb_key: the key.
        unguarded: the reason for which it is not checked.
        **options: as of `key.delete()`.

    Raises:
        ValueError: there is no reason.
        StaleWriteError: the entity has changed since this request has seen it.
    """
    cls, context = watched_class(kind_of(ndb_key)), current_context()
    if cls is None or context is None:
        ndb_key.delete(**options)
        return
    begin: Any = ndb.Key.delete_async.__wrapped__
    future = Delete(cls, ndb_key, here(), context, unguarded).begin(begin, ndb_key, **options)
    if context.transaction is None:
        future.result()


around("model:put_multi_async", ":put_multi_async")(together)
around("model:delete_multi_async", ":delete_multi_async")(together)


@around("model:put_multi", ":put_multi")
def _put_multi(_: Any) -> Any:
    return lambda *args, **kwargs: results_of(ndb_model.put_multi_async(*args, **kwargs))


@around("model:delete_multi", ":delete_multi")
def _delete_multi(_: Any) -> Any:
    return lambda *args, **kwargs: results_of(ndb_model.delete_multi_async(*args, **kwargs))


# --- errors, transactions and contexts ------------------------------------------------------


around("tasklets:Future.set_exception")(setting)
around("_transaction:transaction_async_")(running)


@around("client:Client.context")
def _context_with_errors(context: Any) -> Any:
    @contextlib.contextmanager
    def context_with_errors(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with context(*args, **kwargs) as outermost:
            yield outermost
        leave_context(outermost)

    return context_with_errors
