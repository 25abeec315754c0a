"""`UserModel`: the base class of everything that belongs to a user.

Anything read through it is stamped, anything put through it is checked and
fenced. Reads are free and silent.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from google.cloud import ndb
from google.cloud.ndb.exceptions import ContextError

from userlock.errors import ConfigurationError, EntityNotFound, LockIdError
from userlock.lock.lease import Priority, check_lock_id
from userlock.lock.scope import current_scope
from userlock.lock.tenure import register_participant
from userlock.lock.verbs import global_lock
from userlock.ndb import hooks
from userlock.ndb.fencing import FencedDelete, FencedPut
from userlock.ndb.places import here
from userlock.ndb.provenance import (
    DELETED,
    Origin,
    Stamp,
    check_delete,
    check_put,
    origin,
    stamp_of,
    stamp_of_read,
)
from userlock.ndb.transactions import DatastoreParticipant, wait_for_writes


def key_id(key: Any) -> str | int | None:
    """The lock id is the key's own id or name (None while it has none yet)."""
    return hooks.id_of(key)


def root_id(key: Any) -> str | int | None:
    """The lock id is the id or name of the key's root: the user, for entities below a user."""
    found: str | int | None = key.root().id()
    return found


class UserModel(ndb.Model):
    """A model whose entities are written only under their user's lock.

    Each class says how to find the lock id, in one of these ways:

        class Learner(UserModel):
            _lock_id_from_key = userlock.key_id       # the key's own id names the user

        class VideoLog(UserModel):
            _lock_id = "learner_id"                   # a property holds it
            learner_id = ndb.StringProperty(required=True)

        class Note(UserModel):
            def _lock_id(self) -> str: ...            # a method computes it
            @classmethod
            def _lock_id_from_key(cls, key) -> str: ...

    `_lock_id_from_key` (also `userlock.root_id`) serves deletes too, where
    there is only a key; without it a delete is allowed under any lock. A
    common base class that has no entities of its own says `_abstract = True`.

    A new object with a key of its own does not overwrite an entity that exists
    (`EntityExistsError`), unless the class says `_overwrites = True`.

    A put raises a `WriteViolation` before anything is sent when the entity was
    not read under the lock that is held now. A put of an entity that changed
    in Datastore since it was read raises `StaleWriteError` at the commit and
    changes nothing.
    """

    _lock_id: ClassVar[Any] = None
    _lock_id_from_key: ClassVar[Any] = None
    _abstract: ClassVar[bool] = True
    _overwrites: ClassVar[bool] = False

    _userlock_stamp: Stamp | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_abstract" not in cls.__dict__:
            cls._abstract = False
        if not cls._abstract:
            _check_lock_rule(cls)

    # ndb calls these by either name.
    def _put_async(self, **kwargs: Any) -> Any:
        """Write this entity under its lock. As in ndb, and checked and fenced.

        Raises:
            WriteViolation: it is not being written under the lock it was read under.
            LockIdError: the entity does not say which lock guards it.

        The future raises `StaleWriteError` when the entity changed in
        Datastore since it was read, and `EntityExistsError` when it is new
        but exists already; nothing is overwritten then.
        """
        if hooks.current_context() is None:
            raise ContextError()
        notes = self.__dict__
        self._userlock_wait_for_last_put()
        hooks.wait_for_key(self._key)
        notes["_userlock_putting"] = (here(),)
        try:
            future = super()._put_async(**kwargs)
        finally:
            notes.pop("_userlock_putting", None)
            write: FencedPut | None = notes.pop("_userlock_write", None)
        if write is not None:
            write.begun(future)
        if not future.done():
            notes["_userlock_pending"] = future, hooks.current_context()
        return future

    put_async = _put_async

    def _prepare_for_put(self) -> None:
        """The last step before ndb reads the properties: hooks have run, so check now.

        ndb also calls it for entities within a property of another one, which
        are not put by themselves.
        """
        super()._prepare_for_put()
        putting = self.__dict__.pop("_userlock_putting", None)
        if putting is None:
            return
        (put_at,) = putting
        stamp = stamp_of(self)
        lock_id = _lock_id_for_put(self)
        tenure = check_put(self, lock_id, stamp, put_at)
        self.__dict__["_userlock_put_in"] = hooks.current_transaction()
        self.__dict__["_userlock_write"] = FencedPut(self, lock_id, stamp, tenure, put_at)

    def _userlock_wait_for_last_put(self) -> None:
        """A second put of one object waits for the first, whose version it builds on."""
        pending = self.__dict__.pop("_userlock_pending", None)
        if pending is not None:
            hooks.wait_for(*pending)

    # --- copies -----------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """For pickling. What was held does not travel, the version does.

        An entity that comes back from a pickle counts as read without the lock.
        """
        state = {k: v for k, v in self.__dict__.items() if not k.startswith("_userlock_")}
        stamp = stamp_of(self)
        if stamp is not None:
            state["_userlock_version"] = stamp.version
        return state

    def __setstate__(self, state: Any) -> None:
        version = state.pop("_userlock_version", None) if isinstance(state, dict) else None
        super().__setstate__(state)
        if version is not None:
            self._userlock_stamp = Stamp(self._key, {}, version)

    def __copy__(self) -> Any:
        return self._userlock_copied(lambda value: value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._userlock_copied(lambda value: copy.deepcopy(value, memo))

    def _userlock_copied(self, copied: Callable[[Any], Any]) -> Any:
        """Another object of the same entity, read when and where this one was."""
        other = type(self).__new__(type(self))
        for name, value in self.__dict__.items():
            if name == "_userlock_stamp":
                other.__dict__[name] = value
            elif not name.startswith("_userlock_"):
                other.__dict__[name] = copied(value)
        return other


def _check_lock_rule(cls: type[UserModel]) -> None:
    """A class that cannot be locked is refused when it is defined."""
    rule = cls._lock_id
    if isinstance(rule, str):
        if not isinstance(getattr(cls, rule, None), ndb.Property):
            raise ConfigurationError(
                f"{cls.__name__}._lock_id = {rule!r} names no property of {cls.__name__}"
            )
    elif rule is None:
        if cls._lock_id_from_key is None:
            raise ConfigurationError(
                f"{cls.__name__} does not say which lock guards it. Set "
                f"`_lock_id_from_key = userlock.key_id` if its key's id is the lock id, or "
                f'`_lock_id = "user_id"` if a property holds it; or `_abstract = True` if it '
                f"is a base class without entities of its own"
            )
    elif not callable(rule):
        raise ConfigurationError(
            f"{cls.__name__}._lock_id must be the name of a property or a method, not {rule!r}"
        )


def lock_id_of(entity: UserModel) -> str:
    """The lock that guards an entity.

    Raises:
        LockIdError: the entity does not say; tells why.
    """
    lock_id = _lock_id_for_put(entity)
    if lock_id is None:
        raise LockIdError(f"{_what(entity)} has no id yet, and its id would name its lock")
    return lock_id


def _lock_id_for_put(entity: UserModel) -> str | None:
    """Like `lock_id_of`, but None where Datastore is still to allocate the id that names it."""
    cls = type(entity)
    if cls._abstract:
        raise ConfigurationError(
            f"{cls.__name__} is abstract (it does not say which lock guards it), so its "
            f"entities cannot be put"
        )
    rule = cls._lock_id
    if isinstance(rule, str):
        value = getattr(entity, rule)
        source = f"its property {rule!r}"
    elif rule is not None:
        try:
            value = entity._lock_id()
        except Exception as error:
            raise LockIdError(
                f"{_what(entity)} has no lock id: {cls.__name__}._lock_id() failed "
                f"({type(error).__name__}: {error})"
            ) from error
        source = f"{cls.__name__}._lock_id()"
    else:
        key = entity._key
        value = None if key is None else cls._lock_id_from_key(key)
        if value is None and not hooks.is_complete(key):
            return None
        source = f"{cls.__name__}._lock_id_from_key()"
    try:
        return check_lock_id(value)
    except (TypeError, ValueError) as error:
        raise LockIdError(f"{_what(entity)} has no lock id: {source} gives {value!r}") from error


def _what(entity: UserModel) -> str:
    return repr(entity._key) if entity._key is not None else f"a new {type(entity)._get_kind()}"


def _lock_id_of_key(key: Any) -> str | None:
    """The lock id that a bare key of a `UserModel` tells, or None when it does not."""
    cls: Any = hooks.model_of(key.kind())
    if cls is None or cls._lock_id_from_key is None:
        return None
    value = cls._lock_id_from_key(key)
    return None if value is None else check_lock_id(value)


class _Watch:
    """Implements `watch.Handler`: what passes through ndb meets the rules here."""

    tracked: type = UserModel

    def origin(self) -> Origin:
        return origin()

    def loaded(self, entity: Any, version: int, seen: Any) -> None:
        entity._userlock_stamp = stamp_of_read(entity._key, version, seen)

    def write_of(self, entity: Any) -> FencedPut | None:
        write: FencedPut | None = entity.__dict__.get("_userlock_write")
        return write

    def cached_is_good(self, entity: Any) -> bool:
        """Under a lock, only what was read (or put) under the same tenure is fresh."""
        scope = current_scope()
        if scope is None or not scope.held:
            return True
        try:
            lock_id = _lock_id_for_put(entity)
        except Exception:
            # It does not say which lock guards it. That is for its put to
            # report; a read is simply made afresh.
            return False
        if lock_id is None or lock_id not in scope.held:
            return True
        transaction = hooks.current_transaction()
        if transaction is not None and entity.__dict__.get("_userlock_put_in") == transaction:
            return True  # the transaction's own write, which it cannot read back
        stamp = stamp_of(entity)
        return (
            stamp is not None
            and stamp.held.get(lock_id) is scope.held[lock_id]
            # Otherwise a change that its transaction rolled back may be in it.
            and stamp.transaction in (None, transaction)
        )

    def cached_miss_is_good(self, ndb_key: Any) -> bool:
        """Under its lock a missing entity is looked for again: it may exist by now."""
        scope = current_scope()
        if scope is None or not scope.held:
            return True
        lock_id = _lock_id_of_key(ndb_key)
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
        lock_id = _lock_id_of_key(ndb_key)
        tenure = check_delete(ndb_key, lock_id, deleted_at)
        cached = hooks.cached_entity(ndb_key)
        if isinstance(cached, UserModel):
            cached._userlock_wait_for_last_put()
        else:
            cached = None
        return FencedDelete(ndb_key, lock_id, cached, tenure, deleted_at)


@contextlib.contextmanager
def fetch_under_user_write_lock(
    entity: UserModel,
    *,
    wait_timeout: float | None = None,
    lock_timeout: float | None = None,
    priority: Priority | str | None = None,
) -> Iterator[Any]:
    """Hold the entity's lock for a block, and give an object that may be put in it.

    That is the entity itself when it was read under the tenure that is held
    now (or is new), else the entity read afresh under the lock. Use what is
    given, not what was passed in.

    Raises:
        EntityNotFound: it has been deleted meanwhile.
        LockTimeout, LockServiceUnavailable: as `global_lock`.
        LockIdError: the entity does not say which lock guards it.
    """
    if not isinstance(entity, UserModel):
        raise TypeError(f"fetch_under_user_write_lock() takes a UserModel, not {entity!r:.200}")
    lock_id = lock_id_of(entity)
    lock = global_lock(
        lock_id, wait_timeout=wait_timeout, lock_timeout=lock_timeout, priority=priority
    )
    with lock as tenure:
        stamp = stamp_of(entity)
        if stamp is None or (stamp.held.get(lock_id) is tenure and stamp.version != DELETED):
            yield entity
            return
        fresh = entity._key.get()
        if fresh is None:
            raise EntityNotFound(entity._key)
        yield fresh


register_participant(DatastoreParticipant())
hooks.install(_Watch())
