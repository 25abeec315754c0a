"""What the rest of the wing asks of ndb while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from google.cloud.ndb import context, model

#: In seconds. What has not landed by then is fenced all the same.
_PATIENCE_WITH_THREADS = 5.0


def current_transaction() -> bytes | None:
    """The id of the transaction that the running code is in, if any."""
    current = context.get_context(False)
    return None if current is None else current.transaction


def in_transaction() -> bool:
    """Whether the running code is in a transaction."""
    current = context.get_context(False)
    return current is not None and current.transaction is not None


def current_context() -> Any:
    """The ndb context that the running code is in, or None."""
    return context.get_context(False)


def when_transaction_ends(callback: Callable[[], None]) -> None:
    """Call `callback` when this attempt of the running transaction is over, either way.

    ndb runs a whole transaction again when such a callback raises a transient
    error, so it must not raise.
    """
    context.get_context().call_on_transaction_complete(callback)


def transaction_notes() -> dict[str, Any]:
    """What is to be remembered for as long as this attempt of the running transaction.

    Each has an event loop of its own, which contexts within it (`Context.new`) share.
    """
    loop = context.get_context().eventloop
    notes: dict[str, Any] = loop.__dict__.setdefault("_userlock_notes", {})
    return notes


def cached_entity(ndb_key: Any) -> Any:
    """The object that the context caches have for a key, or None.

    A transaction has a cache of its own, which begins empty. An object that was
    given another key stays where it was; it is not of this key any more.
    """
    for current in (context.get_context(False), context.get_toplevel_context(False)):
        if current is not None and ndb_key in current.cache:
            entity = current.cache[ndb_key]
            return entity if entity is not None and entity._entity_key == ndb_key else None
    return None


def is_cached(ndb_key: Any) -> bool:
    """Whether the context caches know of a key: what it is of, or that there is nothing."""
    return any(
        current is not None and ndb_key in current.cache
        for current in (context.get_context(False), context.get_toplevel_context(False))
    )


def deletes_in_transactions() -> dict[Any, Any]:
    """Notes of deletes that were begun in transactions, by key, for as long as the request."""
    around = context.get_toplevel_context()
    notes: dict[Any, Any] = around.__dict__.setdefault("_userlock_deletes", {})
    return notes


def forget_cached(ndb_key: Any) -> None:
    """Take an entity out of the context caches, so that the next read is a fresh one."""
    for current in (context.get_context(False), context.get_toplevel_context(False)):
        if current is not None:
            current.cache.pop(ndb_key, None)


def id_of(ndb_key: Any) -> str | int | None:
    """`ndb_key.id()`, at a hundredth of its cost, which counts in every put."""
    path = ndb_key._key.flat_path  # kind, id, kind, id, ...; `id()` makes a deep copy of it
    return path[-1] if len(path) % 2 == 0 else None


def kind_of(ds_key: Any) -> str:
    """`kind` of Datastore's key within ndb's, at a hundredth of its cost, as above."""
    path = ds_key.flat_path
    kind: str = path[len(path) % 2 - 2]
    return kind


def is_complete(ndb_key: Any) -> bool:
    """Whether there is a key, and it has an id."""
    return ndb_key is not None and len(ndb_key._key.flat_path) % 2 == 0


def uses_datastore(ndb_key: Any, current: Any, arguments: dict[str, Any]) -> bool:
    """Whether a put or delete goes to Datastore: not, where it is for the global cache only.

    Args:
        ndb_key: of the entity; None while it has none, which has to go there.
        current: the ndb context.
        arguments: those of the put or delete, by name.
    """
    if ndb_key is None:
        return True
    options = arguments.get("_options")
    if options is None:
        options = SimpleNamespace(use_datastore=arguments.get("use_datastore"))
    try:
        return bool(current._use_datastore(ndb_key._key, options))
    except Exception:
        return True  # an error of the policy's: the write ends with it


def key_of(entity: Any) -> Any:
    """`entity.key`, at a tenth of its cost."""
    return entity._entity_key


def model_of(kind: str) -> type | None:
    """The model class of a kind, if it has been imported."""
    found: type | None = model.Model._kind_map.get(kind)
    return found


def wait_for(future: Any, begun_in: Any, begun_by: int) -> None:
    """Run the event loop that `future` belongs to until it is done.

    A transaction has a loop of its own, on which what was begun outside of it
    never finishes. `Context.use()` would merge the outer context's cache into
    the transaction's, which must see its own snapshot; so the context is
    changed by hand. And the outer loop drops the callback that runs the inner
    one as soon as it finds the inner one idle, which it is while it waits
    here; so that callback is put aside.

    Args:
        future: as above.
        begun_in: the context that it was begun in.
        begun_by: the thread. Another one runs its loop itself; it is waited for, some seconds.
    """
    if future.done():
        return
    if begun_by != threading.get_ident():
        _wait_for_thread(future)
        return
    before = context.get_context(False)
    if before is begun_in:
        future.wait()
        return
    if before is None:  # it is over: left by an exception, so that ndb has not waited
        with begun_in.use():
            future.wait()
        return
    idlers = begun_in.eventloop.idlers
    aside = [idler for idler in idlers if any(argument is before for argument in idler[1])]
    for idler in aside:
        idlers.remove(idler)
    context._state.context = begun_in
    try:
        future.wait()
    finally:
        context._state.context = before
        idlers.extend(aside)


def _wait_for_thread(future: Any) -> None:
    """Of two threads that run one loop, one would wait for ever for what the other has taken."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    ends = time.monotonic() + _PATIENCE_WITH_THREADS
    # It may have become done before there was a callback: so look, too.
    while not future.done() and time.monotonic() < ends:
        done.wait(0.05)


def in_flight() -> dict[Any, Any]:
    """Creations and deletes under way on the running event loop: key to future.

    ndb sends what is put and deleted in one turn in one commit, where a second
    mutation of an entity is an error. Creations go in a commit of their own,
    so that they could pass, or be passed by, a delete of the same entity.
    """
    loop = context.get_context().eventloop
    flying: dict[Any, Any] = loop.__dict__.setdefault("_userlock_in_flight", {})
    return flying


def wait_for_entity(entity: Any, current: Any) -> None:
    """`wait_for_key` of an entity's key, in a context. Asked in each put; rarely is there one."""
    if current.eventloop.__dict__.get("_userlock_in_flight"):
        wait_for_key(entity._entity_key)


def wait_for_key(ndb_key: Any) -> None:
    """Wait for a creation or delete of the same entity that is under way, if there is one."""
    flying = in_flight()
    if flying and ndb_key is not None:
        future = flying.get(ndb_key)
        if future is not None:
            wait_for(future, context.get_context(), threading.get_ident())


def note_in_flight(ndb_key: Any, future: Any) -> None:
    """Remember a creation or delete until it is done."""
    flying = in_flight()
    flying[ndb_key] = future

    def forget(done: Any) -> None:
        if flying.get(ndb_key) is done:
            del flying[ndb_key]

    future.add_done_callback(forget)
