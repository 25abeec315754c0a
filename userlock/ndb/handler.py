"""What passes through ndb meets the rules here."""

from __future__ import annotations

from typing import Any

from userlock.lock.scope import current_scope
from userlock.ndb import hooks
from userlock.ndb.deleting import FencedDelete
from userlock.ndb.enforcement import Moment
from userlock.ndb.fencing import FencedPut
from userlock.ndb.lastputs import deleted_in_running_transaction, put_in_running_transaction
from userlock.ndb.lockids import lock_id_for_put, lock_id_of_key
from userlock.ndb.places import here
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import check_delete
from userlock.ndb.server import tell_of_missing_versions
from userlock.ndb.stamps import (
    NOTHING_HELD,
    origin,
    place_of_read,
    stamp_of,
    stamp_read,
)
from userlock.ndb.transactions import wait_for_writes


class ModelHandler:
    """Implements `watch.Handler`.

    Args:
        tracked: the base class of the models that it is for.
    """

    def __init__(self, tracked: type) -> None:
        self.tracked = tracked

    origin = staticmethod(origin)
    place = staticmethod(place_of_read)

    def loaded(self, entity: Any, version: int, asked: Any, place: Any) -> None:
        if version < 0:
            tell_of_missing_versions()
        stamp_read(entity, version, asked or NOTHING_HELD, place)

    def write_of(self, entity: Any) -> FencedPut | None:
        write: FencedPut | None = entity.__dict__.get("_userlock_write")
        return write

    def cached_is_good(self, entity: Any) -> bool:
        """Under a lock, only what was read (or put) under the same tenure is fresh."""
        if entity._write_policy is WritePolicy.IN_TRANSACTION:
            return _is_of_running_transaction(entity)
        scope = current_scope()
        if scope is None or not scope.held or entity._userlock_rule is None:
            return True
        try:
            lock_id = lock_id_for_put(entity)
        except Exception:
            # It does not say which lock guards it. That is for its put to
            # report; a read is simply made afresh.
            return False
        if lock_id is None or lock_id not in scope.held:
            return True
        if put_in_running_transaction(entity):
            return True  # the transaction cannot read its own write back
        stamp = stamp_of(entity)
        return (
            stamp is not None
            and stamp.held.get(lock_id) is scope.held[lock_id]
            # Otherwise a change that its transaction rolled back may be in it.
            and stamp.transaction in (None, hooks.current_transaction())
        )

    def cached_miss_is_good(self, ndb_key: Any) -> bool:
        """Under its lock a missing entity is looked for again: it may exist by now."""
        scope = current_scope()
        if scope is None or not scope.held:
            return True
        cls: Any = hooks.model_of(ndb_key.kind())
        if cls._write_policy is not WritePolicy.USER_LOCK:
            return True
        if deleted_in_running_transaction(ndb_key):
            return True  # the transaction would find it still
        try:
            lock_id = lock_id_of_key(cls, ndb_key)
        except Exception:
            return False  # as above
        return lock_id is not None and lock_id not in scope.held

    def bypass_global_cache(self) -> bool:
        scope = current_scope()
        return scope is not None and bool(scope.held)

    def beginning_transaction(self) -> None:
        scope = current_scope()
        if scope is not None and hooks.current_transaction() is None:
            for tenure in scope.held.values():
                wait_for_writes(tenure)

    def deleting(self, ndb_key: Any) -> FencedDelete:
        deleted_at = here()
        cls: Any = hooks.model_of(ndb_key.kind())
        now = Moment(deleted_at, hooks.current_context())
        cached = hooks.cached_entity(ndb_key)
        if not isinstance(cached, self.tracked):
            cached = None
        stamp = None if cached is None else stamp_of(cached)
        earlier = None
        if stamp is None and hooks.is_cached(ndb_key):
            earlier = hooks.deletes_in_transactions().get(ndb_key)
            if earlier is not None:
                cached, stamp = earlier.cached, stamp_of(earlier.cached)
        lock_id, tenure = check_delete(cls, ndb_key, stamp, deleted_at, now)
        if cached is not None:
            cached._userlock_wait_for_last_put()
        return FencedDelete(ndb_key, lock_id, cached, tenure, deleted_at, now, earlier)


def _is_of_running_transaction(entity: Any) -> bool:
    """Whether it was read or put in the transaction that the running code is in, if any.

    An independent transaction leaves what it has read in the cache of the one around it.
    """
    transaction = hooks.current_transaction()
    if transaction is None or put_in_running_transaction(entity):
        return True
    stamp = stamp_of(entity)
    return stamp is not None and stamp.transaction == transaction
