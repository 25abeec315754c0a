"""The functions of ndb that userlock replaces, and its part in the release of locks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from google.cloud import ndb
from google.cloud.ndb import model as ndb_model
from google.cloud.ndb import tasklets

from userlock.arguments import check_kind
from userlock.callsite import here
from userlock.lock.configuration import defaults
from userlock.lock.scope import current_scope, register_participant
from userlock.ndb.calls import begin_late
from userlock.ndb.checks import cached_is_good, cached_miss_is_good
from userlock.ndb.context import current_context, request_notes, uses_datastore
from userlock.ndb.patches import around, instead, key_of, kind_of
from userlock.ndb.pending import raise_unseen, set_exception
from userlock.ndb.policies import is_watched, watched_class
from userlock.ndb.provenance import NO_LOCKS, NOTHING_HELD, Origin, Stamped, orders, stamp_read
from userlock.ndb.stub import Gate, client_stub, settle, stamped_message
from userlock.ndb.transactions import DatastoreParticipant, run_transaction, transaction
from userlock.ndb.wire import QuickKey, TicketedKey, number_in
from userlock.ndb.writes import Delete, begin_together, results_of, writing

if hasattr(ndb_model, "_userlock_installed"):
    raise RuntimeError("userlock is installed in ndb already")
ndb_model._userlock_installed = True

register_participant(DatastoreParticipant())

ndb.Client.stub = client_stub


@instead("_datastore_api:stub")
def _gated_stub(stub: Any) -> Any:
    return found if type(found := stub()) is Gate else Gate(found)


around("_datastore_api:_process_commit")(settle)


@around("_eventloop:EventLoop.queue_rpc")
def _queue_rpc(loop: Any, rpc: Any, callback: Any) -> None:
    """Have an event loop take the answer to an RPC, as in ndb, but also after an exception, as of a
    signal, that comes on the way: the loop would wait for that RPC for ever."""
    number = object()
    answer = [(number, rpc)]

    def answered(_: object) -> None:
        if answer:
            loop.rpc_results.put(answer.pop())

    try:
        loop.rpcs[number] = callback
        rpc.add_done_callback(answered)
    except BaseException:
        loop.rpcs[number] = callback
        rpc.add_done_callback(answered)
        raise


# --- reads ----------------------------------------------------------------------------------


@instead("model:_entity_from_protobuf")
def _stamped_entity(from_protobuf: Any, message: Any) -> Any:
    """Stamp an entity. One that did not come as Datastore's answer was read under no lock."""
    entity = from_protobuf(message)
    if isinstance(entity, Stamped):
        stamp = vars(message).get("_userlock_stamp")
        version, asked, place = stamp or (number_in(message._pb), NOTHING_HELD, None)
        read = stamp_read(entity, key_of(entity), version, asked, place)
        if version > 0 or (asked.order and version == 0):
            request_notes().ledger.saw(read)
    return entity


@instead("_datastore_api:lookup")
def _lookup_of_reader(lookup: Any, key: Any, options: Any) -> Any:
    """Look an entity up for the running code. Under a lock, bypass the global cache."""
    path = key.flat_path
    if not is_watched(path[len(path) % 2 - 2]):
        return lookup(key, options)
    key = QuickKey.like(key)
    scope, context = current_scope(), current_context()
    settings = defaults.settings if scope is None else scope.settings
    asked = Origin(NO_LOCKS if scope is None else scope.held, None, next(orders))
    place = here() if settings.capture_places else None
    cached = context.global_cache is not None
    stored = not cached or uses_datastore(context, key, {"_options": options})
    if cached and stored and asked.held:
        cached, options = False, _past_the_global_cache(options)
    found = tasklets.Future("a look-up")

    def answered(looked_up: Any) -> None:
        nonlocal cached
        if found.done():  # it was cancelled
            return
        error = tasklets.Future.exception(looked_up)
        if error is not None:
            found.set_exception(error)
            return
        message = looked_up.result()
        if not hasattr(message, "_pb"):
            found.set_result(message)  # there is no such entity
            return
        stamp = vars(message).get("_userlock_stamp")
        if stamp is None and cached and stored and not _has_version(message):
            cached = False
            with context.use():
                again = lookup(key, _past_the_global_cache(options))
            again.add_done_callback(answered)
            return
        if stamp is None:
            # Where that is all there is, an entity in the global cache is read under a lock.
            lives_there = not stored and context.datastore_policy(key) is False
            stamp = number_in(message._pb), asked if lives_there else NOTHING_HELD, place
        else:
            stamp = stamp[0], _held_since(asked, stamp[1]), place
        found.set_result(stamped_message(message._pb, stamp))

    lookup(key, options).add_done_callback(answered)
    return found


def _past_the_global_cache(options: Any) -> Any:
    return options.copy(use_global_cache=False)


def _has_version(message: Any) -> bool:
    return number_in(message._pb) > 0  # else a process without userlock has cached it


def _held_since(asked: Origin, sent: Origin) -> Origin:
    """Return the origin of a look-up with the locks that its caller has held since it asked."""
    # The request may have been sent by other code, with another scope, that ran the event loop.
    if sent.held is asked.held:
        return sent
    held = {lock_id: tenure for lock_id, tenure in asked.held.items() if tenure.held}
    return sent._replace(held={**sent.held, **held})


@around("_cache:ContextCache.get_and_validate")
def _get_if_good(cache: Any, key: Any) -> Any:
    """Get an entity, or None, from the context cache. Under a lock it may be outdated."""
    entity = _get_if_good.__wrapped__(cache, key)
    if entity is None:
        cls = watched_class(kind_of(key))
        good = cls is None or cached_miss_is_good(cls, key)
    else:
        good = not isinstance(entity, Stamped) or cached_is_good(entity)
    if not good:
        del cache[key]
        raise KeyError(key)
    return entity


# --- writes ---------------------------------------------------------------------------------


@around("model:Model.put_async")
def _put_of_its_class(entity: Any, **kwargs: Any) -> Any:
    """Turn `ndb.Model.put_async(entity)`, past its own class, into a put of that class."""
    if isinstance(entity, Stamped):
        current = writing()
        if current is None or current.entity is not entity:
            checked: Any = entity
            return checked._userlock_put_async(**kwargs)
    return _put_of_its_class.__wrapped__(entity, **kwargs)


@around("key:Key.delete_async")
def _delete_if_allowed(ndb_key: Any, *args: Any, **kwargs: Any) -> Any:
    """Delete as the model's policy says, and build on what was read."""
    cls, context = watched_class(kind_of(ndb_key)), current_context()
    begin = _delete_if_allowed.__wrapped__
    if cls is None or context is None:
        return begin(ndb_key, *args, **kwargs)
    return Delete(cls, ndb_key, here(), context).begin(begin, ndb_key, *args, **kwargs)


@instead("_datastore_api:put")
def _ticketed_put(put: Any, entity: Any, options: Any) -> Any:
    current = writing()
    if current is not None:
        entity.key = current.ticketed(entity.key, entity)
    return put(entity, options)


@instead("_datastore_api:delete")
def _ticketed_delete(delete: Any, key: Any, options: Any) -> Any:
    current = writing()
    return delete(key if current is None else current.ticketed(key), options)


@instead("_cache:global_cache_key")
def _cache_key_without_ticket(cache_key: Any, key: Any) -> Any:
    return cache_key(key.plain if type(key) is TicketedKey else key)


def delete(ndb_key: Any, *, unguarded: str, **options: Any) -> None:
    """Delete an entity without a check, and wait: `key.delete()`. The delete is fenced.

    Args:
        ndb_key: the key.
        unguarded: the reason for which it is not checked.
        **options: as of `key.delete()`.

    Raises:
        TypeError: it is no key.
        ValueError: there is no reason.
        StaleWriteError: the entity has changed since this request has seen it.
    """
    check_kind("ndb_key", ndb_key, ndb.Key, "a key")
    cls, context = watched_class(kind_of(ndb_key)), current_context()
    if cls is None or context is None:
        ndb_key.delete(**options)
        return
    write = Delete(cls, ndb_key, here(), context, unguarded)
    future = write.begin(_delete_if_allowed.__wrapped__, ndb_key, **options)
    if context.transaction is None:
        future.result()


@instead("model:put_multi_async", ":put_multi_async")
def _put_multi_async(begin_all: Any, entities: Any, **kwargs: Any) -> Any:
    return begin_together(begin_all, entities, **kwargs)


@instead("model:delete_multi_async", ":delete_multi_async")
def _delete_multi_async(begin_all: Any, keys: Any, **kwargs: Any) -> Any:
    return begin_together(begin_all, keys, **kwargs)


@instead("model:put_multi", ":put_multi")
def _put_multi(_: Any, *args: Any, **kwargs: Any) -> Any:
    return results_of(ndb_model.put_multi_async(*args, **kwargs))


@instead("model:delete_multi", ":delete_multi")
def _delete_multi(_: Any, *args: Any, **kwargs: Any) -> Any:
    return results_of(ndb_model.delete_multi_async(*args, **kwargs))


around("tasklets:Future.set_exception")(set_exception)
instead("_transaction:transaction_async_")(run_transaction)
instead("_transaction:transaction", ":transaction")(transaction)


@instead("_datastore_api:begin_transaction")
def _begin_with_first_rpc(_: Any, read_only: bool, **__: Any) -> Any:
    begun = tasklets.Future("the beginning of a transaction")
    begun.set_result(begin_late(read_only=read_only))
    return begun


@around("client:Client.context")
@contextlib.contextmanager
def _context_with_errors(*args: Any, **kwargs: Any) -> Iterator[Any]:
    with _context_with_errors.__wrapped__(*args, **kwargs) as outermost:
        yield outermost
    notes = getattr(outermost, "_userlock_notes", None)
    if notes is not None:
        raise_unseen(notes.books, "this context", under_locks=False)
