"""The few points of google-cloud-ndb that are private, and all that is replaced in it.

Written against google-cloud-ndb 2.3 to 2.7. Each point is checked before
anything touches it: on a release that moved one, the import of any name of
userlock's fails and says which. That a point still does what it did is for the
tests to see, which run with the oldest and the newest release; a write that
ndb sends by another way has no ticket, and is refused at the wire (`stub`).
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import google.cloud.ndb as ndb_package

from userlock.ndb.capabilities import installed_release
from userlock.ndb.wire import kind_in


class Point(NamedTuple):
    """One private name of ndb, below `google.cloud.ndb`, and what it is needed for."""

    name: str
    reason: str


POINTS = (
    Point("_datastore_api:stub", "any client's stub, also of no `ndb.Client`, is gated"),
    Point("_datastore_api:put", "the ticket of a put is written into the key that it sends"),
    Point("_datastore_api:delete", "likewise, of a delete"),
    Point("_datastore_api:lookup", "the keys of look-ups make their messages quickly"),
    Point("_datastore_api:_process_commit", "each write of a commit gets an error of its own"),
    Point("_cache:global_cache_key", "the global cache's keys are without tickets"),
    Point("_cache:ContextCache.get_and_validate", "under a lock, what is cached may be old"),
    Point("_transaction:transaction_async_", "writes land before; its error is the real one"),
    Point("tasklets:_TaskletFuture._advance_tasklet", "`suppress` holds for tasklets of its block"),
    Point("model:_entity_from_protobuf", "a message becomes an object, and its stamp goes along"),
    Point("model:Model._prepare_for_put", "the last step before the properties are read"),
    Point("model:Model._put_async", "the base class's put is the put of the entity's own class"),
    Point("model:Model._key", "the key, whatever properties an application has"),
    Point("model:Model._projection", "a part of an entity must not be put"),
    Point("key:Key._key", "kind and id, at a hundredth of the cost of `kind()` and `id()`"),
)


#: Those that are no functions or classes.
_ATTRIBUTES = ("model:Model._key", "model:Model._projection", "key:Key._key")


def missing_points() -> list[str]:
    """Return the points that the installed release does not have."""
    missing = []
    for point in POINTS:
        try:
            if point.name == "key:Key._key":  # an attribute of objects alone
                found = ndb_package.Key("A", 1, project="p", namespace="", database="")._key
            else:
                found = pkgutil.resolve_name(f"google.cloud.ndb.{point.name}")
        except Exception:
            missing.append(f"{point.name} is gone")
            continue
        if not callable(found) and point.name not in _ATTRIBUTES:
            missing.append(f"{point.name} is not a function any more")
    return missing


def check_points() -> None:
    """See that all points are there.

    Raises:
        ImportError: one is not; says which, and what to do.
    """
    missing = missing_points()
    if missing:
        raise ImportError(
            f"userlock cannot protect writes with google-cloud-ndb {installed_release()}: "
            f"{'; '.join(missing)}. Install google-cloud-ndb 2.3 to 2.7, with which it is tested, "
            f"or a newer userlock"
        )


check_points()

from google.cloud.ndb import _cache, _datastore_api, _transaction, tasklets
from google.cloud.ndb import key as ndb_key_module
from google.cloud.ndb import model as ndb_model

# --- reading ndb's objects ------------------------------------------------------------------


def key_of(entity: Any) -> Any:
    """Return the key of an entity."""
    return entity._key


def kind_of(ndb_key: Any) -> str:
    """Return the kind of a key."""
    return kind_in(ndb_key._key.flat_path)  # `kind()` makes a deep copy of the path


def path_of(ndb_key: Any) -> tuple[Any, ...]:
    """Return kind, id, kind, id, ...; without an id at the end, that is not there."""
    path: tuple[Any, ...] = ndb_key._key.flat_path
    return path


def id_of(ndb_key: Any) -> str | int | None:
    """Return the id of a key, or None."""
    path = ndb_key._key.flat_path
    return path[-1] if len(path) % 2 == 0 else None


def same_key(ndb_key: Any, other: Any) -> bool:
    """Return whether two keys are equal. Most are the same object, of which ndb takes no notice."""
    return ndb_key is other or bool(ndb_key == other)


def is_complete(ndb_key: Any) -> bool:
    """Return whether there is a key, and it has an id."""
    return ndb_key is not None and len(ndb_key._key.flat_path) % 2 == 0


def projection_of(entity: Any) -> tuple[str, ...]:
    """Return the names of the properties that an entity was read with, if that was a part."""
    projection: tuple[str, ...] = entity._projection
    return projection


# --- what is replaced -----------------------------------------------------------------------


def install(hooks: Any) -> None:
    """Take the place of ndb's own ways, once per process.

    Args:
        hooks: what is called instead; see `hooks.ModelHooks`.
    """
    if getattr(ndb_model, "_userlock_installed", False):
        raise RuntimeError("userlock is installed in ndb already")
    ndb_model._userlock_installed = True
    _install_at_the_wire(hooks)
    _install_for_reads(hooks)
    _install_for_writes(hooks)
    _install_for_transactions(hooks)


def _install_at_the_wire(hooks: Any) -> None:
    ndb_package.Client.stub = GatedStub(hooks.gated)
    stub = _datastore_api.stub
    process_commit = _datastore_api._process_commit

    @functools.wraps(stub)
    def gated_stub() -> Any:
        return hooks.gated(stub())

    @functools.wraps(process_commit)
    def settle_and_process(rpc: Any, futures: list[Any]) -> None:
        hooks.settle(rpc, futures, process_commit)

    _datastore_api.stub = gated_stub
    _datastore_api._process_commit = settle_and_process


class GatedStub:
    """`ndb.Client.stub`, of clients that were made before as well: the stub behind its gate."""

    def __init__(self, gated: Callable[[Any], Any]) -> None:
        self._gated = gated

    def __get__(self, client: Any, owner: Any = None) -> Any:
        if client is None:
            return self
        try:
            stub = vars(client)["stub"]
        except KeyError:
            raise AttributeError("this ndb.Client has no stub yet") from None
        gated = self._gated(stub)
        if gated is not stub:
            vars(client)["stub"] = gated
        return gated

    def __set__(self, client: Any, stub: Any) -> None:
        vars(client)["stub"] = self._gated(stub)

    def __delete__(self, client: Any) -> None:
        vars(client).pop("stub", None)


def _install_for_reads(hooks: Any) -> None:
    from_protobuf = ndb_model._entity_from_protobuf
    get_and_validate = _cache.ContextCache.get_and_validate
    get_async = ndb_key_module.Key.get_async
    lookup = _datastore_api.lookup
    tracked = hooks.tracked

    @functools.wraps(from_protobuf)
    def stamped_entity(protobuf: Any) -> Any:
        entity = from_protobuf(protobuf)
        if isinstance(entity, tracked):
            hooks.made(entity, protobuf)
        return entity

    @functools.wraps(get_and_validate)
    def get_if_good(self: Any, key: Any) -> Any:
        entity = get_and_validate(self, key)
        if not hooks.is_good(key, entity):
            del self[key]
            raise KeyError(key)
        return entity

    @functools.wraps(get_async)
    def get_with_place(self: Any, *args: Any, **kwargs: Any) -> Any:
        return hooks.get_async(self, functools.partial(get_async, self, *args), kwargs)

    @functools.wraps(lookup)
    def quick_lookup(key: Any, options: Any) -> Any:
        return lookup(hooks.quick(key), options)

    _datastore_api.lookup = quick_lookup
    ndb_model._entity_from_protobuf = stamped_entity
    _cache.ContextCache.get_and_validate = get_if_good
    ndb_key_module.Key.get_async = get_with_place


def _install_for_writes(hooks: Any) -> None:
    put, delete = _datastore_api.put, _datastore_api.delete
    cache_key = _cache.global_cache_key
    delete_async = ndb_key_module.Key.delete_async
    tracked = hooks.tracked

    @functools.wraps(put)
    def put_with_ticket(entity: Any, options: Any) -> Any:
        entity.key = hooks.ticketed(entity.key)
        return put(entity, options)

    @functools.wraps(delete)
    def delete_with_ticket(key: Any, options: Any) -> Any:
        return delete(hooks.ticketed(key), options)

    @functools.wraps(cache_key)
    def cache_key_without_ticket(key: Any) -> Any:
        return cache_key(hooks.plain(key))

    @functools.wraps(delete_async)
    def delete_if_allowed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return hooks.delete_async(self, functools.partial(delete_async, self, *args), kwargs)

    _datastore_api.put = put_with_ticket
    _datastore_api.delete = delete_with_ticket
    _cache.global_cache_key = cache_key_without_ticket
    ndb_key_module.Key.delete_async = delete_if_allowed
    _install_base_class(tracked)
    for name in ("put_multi", "delete_multi"):
        begin_all = _all_or_none(hooks, getattr(ndb_model, f"{name}_async"))
        for module in (ndb_model, ndb_package):
            setattr(module, f"{name}_async", begin_all)
            setattr(module, name, _and_wait(getattr(ndb_model, name), begin_all))


def _install_base_class(tracked: Any) -> None:
    """`ndb.Model.put_async(entity)`, past the method of the entity's own class, is its put too."""
    put_async = ndb_model.Model._put_async
    put_checked = tracked._put_async

    @functools.wraps(put_async)
    def put_as_its_class_does(self: Any, **kwargs: Any) -> Any:
        if isinstance(self, tracked) and not self._userlock_is_being_put():
            return put_checked(self, **kwargs)
        return put_async(self, **kwargs)

    ndb_model.Model._put_async = ndb_model.Model.put_async = put_as_its_class_does


def _all_or_none(hooks: Any, begin_all: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(begin_all)
    def begin_all_or_none(*args: Any, **kwargs: Any) -> list[Any]:
        futures: list[Any] = hooks.together(lambda: begin_all(*args, **kwargs))
        return futures

    return begin_all_or_none


def _and_wait(
    name: Callable[..., list[Any]], begin_all: Callable[..., list[Any]]
) -> Callable[..., list[Any]]:
    @functools.wraps(name)
    def write_all(*args: Any, **kwargs: Any) -> list[Any]:
        return [future.result() for future in begin_all(*args, **kwargs)]

    return write_all


def _install_for_transactions(hooks: Any) -> None:
    begin = _transaction.transaction_async_
    context = ndb_package.Client.context

    @functools.wraps(begin)
    def begin_after_writes(callback: Any, *args: Any, **kwargs: Any) -> Any:
        return hooks.transaction(callback, lambda run: begin(run, *args, **kwargs))

    @functools.wraps(context)
    @contextlib.contextmanager
    def context_with_errors(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with context(self, *args, **kwargs) as outermost:
            yield outermost
        hooks.leaving(outermost)

    _transaction.transaction_async_ = begin_after_writes
    ndb_package.Client.context = context_with_errors


# --- tasklets, from the first `suppress` on -------------------------------------------------


def watch_tasklets(begun: Callable[[], Any]) -> Callable[[Any], Any]:
    """From now on, note what `begun` gives with each tasklet that is begun.

    Returns:
        A function that gives what was noted with the tasklet whose step a frame runs; nothing
        for a frame of an event loop, which runs what it was given; None for any other frame.
    """
    kind = tasklets._TaskletFuture
    step = kind._advance_tasklet.__code__
    begin = kind.__init__

    @functools.wraps(begin)
    def begin_noting(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self._userlock_begun = begun()

    def noted(frame: Any) -> Any:
        if frame.f_code is step:
            return getattr(frame.f_locals["self"], "_userlock_begun", ())
        if frame.f_code.co_name == "run0" and _is_event_loop(frame.f_locals.get("self")):
            return ()
        return None

    kind.__init__ = begin_noting
    return noted


def _is_event_loop(found: Any) -> bool:
    current = ndb_package.context.get_context(False)
    return current is not None and type(found) is type(current.eventloop)


# --- attributes -----------------------------------------------------------------------------


def name_early(cls: type, attributes: Iterable[str]) -> None:
    """Let the objects of a class share these attributes' names, before there is any object.

    The objects of a class keep their values without a dict of their own, as long as the class
    knows the names (PEP 412). CPython closes the list after some thirty objects: attributes
    that come later cost each of them a dict, which the garbage collector has to visit as well.
    All that is lost by a class whose objects cannot be made like this is that saving.
    """
    if hasattr(cls, "__del__"):
        return  # which would be called for an object that was never begun
    with contextlib.suppress(TypeError):
        first: object = object.__new__(cls)
        for name in attributes:
            object.__setattr__(first, name, None)
