"""The functions that `patches` puts in the place of ndb's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from google.cloud.ndb import tasklets

from userlock.callsite import CallSite, here
from userlock.ndb import fencing, stub, transactions
from userlock.ndb import writing as begun
from userlock.ndb.checks import (
    bypass_global_cache,
    cached_is_good,
    cached_miss_is_good,
    check_delete,
)
from userlock.ndb.context import current_context
from userlock.ndb.enforcement import Moment, place_of_read
from userlock.ndb.patches import key_of, kind_of
from userlock.ndb.provenance import NOTHING_HELD, stamp_read
from userlock.ndb.watched import is_watched, watched_class
from userlock.ndb.wire import kind_in, number_in, quick


class ModelHooks:
    """Each method takes the place of one of ndb's, and is given what ndb would do.

    Args:
        tracked: the base class of the entities that are watched.
    """

    def __init__(self, tracked: Any) -> None:
        self.tracked = tracked

    gated = staticmethod(stub.gated)
    ticketed = staticmethod(begun.ticketed_key)
    plain = staticmethod(begun.plain_key)
    settle = staticmethod(stub.settle)
    together = staticmethod(begun.together)
    transaction = staticmethod(transactions.run_transaction)
    leaving = staticmethod(transactions.leave_context)

    def quick(self, ds_key: Any) -> Any:
        """Return the key that a look-up sends: one that makes its message quickly."""
        return quick(ds_key) if is_watched(kind_in(ds_key.flat_path)) else ds_key

    # --- reads ------------------------------------------------------------------------------

    def made(self, entity: Any, message: Any) -> None:
        """Stamp an entity. What did not come as Datastore's answer was read under no lock."""
        try:
            # Past proto-plus, which would look for a field. Not by `__dict__`: asked for that,
            # each message would get one.
            version, asked, place = object.__getattribute__(message, "_userlock_stamp")
        except AttributeError:
            version, asked, place = number_in(message._pb), NOTHING_HELD, None
        stamp_read(entity, key_of(entity), version, asked, place)

    def get_async(self, ndb_key: Any, get: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """Note where a look-up is asked for. Under a lock, pass by the global cache."""
        if not is_watched(kind_of(ndb_key)):
            return get(**kwargs)
        context = current_context()
        place = place_of_read()
        if context is None or context.global_cache is None:
            future = get(**kwargs)
        elif bypass_global_cache():
            future = get(**_past_the_global_cache(kwargs))
        else:
            future = self._get_with_version(ndb_key, get, kwargs)
        if place is not None:
            future.add_done_callback(functools.partial(self._note_place, place))
        return future

    @tasklets.tasklet
    def _get_with_version(
        self, ndb_key: Any, get: Callable[..., Any], kwargs: dict[str, Any]
    ) -> Any:
        entity = yield get(**kwargs)
        if (
            isinstance(entity, self.tracked)
            and not entity._userlock_version
            and entity._userlock_origin is NOTHING_HELD
        ):
            # Put into the global cache by a process without userlock. Without a
            # version its put could not be fenced.
            current_context().cache.pop(ndb_key, None)
            entity = yield get(**_past_the_global_cache(kwargs))
        return entity

    def _note_place(self, place: CallSite, future: Any) -> None:
        """Note with an entity that has been looked up where it was asked for at first."""
        if tasklets.Future.exception(future) is None:
            entity = future.result()
            if isinstance(entity, self.tracked) and entity._userlock_place is None:
                entity._userlock_place = place

    def is_good(self, ndb_key: Any, entity: Any) -> bool:
        """Caches lie: under a lock, what is cached may be old."""
        if entity is None:
            cls = watched_class(kind_of(ndb_key))
            return cls is None or cached_miss_is_good(cls, ndb_key)
        return not isinstance(entity, self.tracked) or cached_is_good(entity)

    # --- deletes ----------------------------------------------------------------------------

    def delete_async(self, ndb_key: Any, delete: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """Delete as the model's policy says, and what was read."""
        cls = watched_class(kind_of(ndb_key))
        context = current_context()
        if cls is None or context is None:
            return delete(**kwargs)
        deleted_at = here()

        def ticket() -> fencing.DeleteTicket:
            """Check it when the model's hook has run, as a put."""
            transactions.wait_for_key(ndb_key, context)
            now = Moment(deleted_at, context)
            stamp = fencing.stamp_for_delete(ndb_key, cls)
            lock_id, tenure = check_delete(cls, ndb_key, stamp, deleted_at, now)
            return fencing.DeleteTicket(ndb_key, cls, lock_id, stamp, tenure, deleted_at, now)

        return begun.Writing(None, deleted_at, context, ticket).begin(lambda: delete(**kwargs))


def _past_the_global_cache(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a look-up that goes to Datastore itself."""
    options = kwargs.get("_options")
    asked = kwargs if options is None else dict(options.items())
    if asked.get("use_datastore") is False:
        return kwargs  # for the cache only
    if options is None:
        return {**kwargs, "use_global_cache": False}
    return {**kwargs, "_options": options.copy(use_global_cache=False)}
