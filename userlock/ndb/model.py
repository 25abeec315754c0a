"""`Model` and `UserModel`: the base classes of what is written under a write policy.

Anything read through them is stamped, anything put through them is checked and
fenced. Reads are free and silent.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from google.cloud import ndb
from google.cloud.ndb import polymodel
from google.cloud.ndb.exceptions import ContextError

from userlock.errors import ConfigurationError, EntityNotFound
from userlock.lock.lease import Priority
from userlock.lock.tenure import register_participant
from userlock.lock.verbs import global_lock
from userlock.ndb import hooks
from userlock.ndb.enforcement import Moment
from userlock.ndb.fencing import FencedPut
from userlock.ndb.handler import ModelHandler
from userlock.ndb.lockids import LockRule, lock_id_of, lock_rule_of
from userlock.ndb.places import Place, here
from userlock.ndb.policies import WritePolicy, settle_policy
from userlock.ndb.provenance import check_put, check_put_of_policy, check_whole
from userlock.ndb.staleness import watch_uses
from userlock.ndb.stamps import ATTRIBUTES, DELETED, Origin, place_of_read, restamp, stamp_of
from userlock.ndb.transactions import DatastoreParticipant
from userlock.settings import Reaction


class Model(ndb.Model):
    """A model that says how its entities are written safely: its one write policy.

        class Course(userlock.Model):
            _write_policy = userlock.WritePolicy.IN_TRANSACTION

    What belongs to a user derives from `UserModel`, which has a policy by
    itself. A class without a policy, or with two, is refused when it is defined
    (`ConfigurationError`). A subclass has its base's policy, unless it names
    another one.

    A new object with a key of its own does not overwrite an entity that exists
    (`EntityExistsError`), unless the class says `_overwrites = True`.

    A put or delete that the policy does not allow raises a `WriteViolation`
    before anything is sent. A put of an entity that changed in Datastore since
    it was read raises `StaleWriteError` at the commit and changes nothing.
    """

    _write_policy: ClassVar[WritePolicy] = WritePolicy.ABSTRACT
    _overwrites: ClassVar[bool] = False
    _lock_id: ClassVar[Any] = None
    _lock_id_from_key: ClassVar[Any] = None

    _userlock_default_policy: ClassVar[WritePolicy | None] = None
    _userlock_rule: ClassVar[LockRule | None] = None
    # See `stamps.ATTRIBUTES`.
    _userlock_key: Any = None
    _userlock_lock_id: object = None
    _userlock_origin: Origin | None = None
    _userlock_place: Place | None = None
    _userlock_version: int = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        policy = settle_policy(cls, cls._userlock_default_policy)
        cls._write_policy = policy
        _check_hierarchy(cls)
        cls._userlock_rule = lock_rule_of(cls) if policy is WritePolicy.USER_LOCK else None
        hooks.name_early(cls, ATTRIBUTES)

    # ndb calls these by either name.
    def _put(self, **kwargs: Any) -> Any:
        """`_put_async`, and wait for it."""
        notes = self.__dict__
        # From here, the caller is near.
        if "_userlock_put_at" not in notes:
            notes["_userlock_put_at"] = here()
        try:
            return super()._put(**kwargs)
        finally:
            notes.pop("_userlock_put_at", None)
            write = notes.get("_userlock_pending")
            if write is not None and write.future.done():
                del notes["_userlock_pending"]
                write.answered()

    put = _put

    def _put_async(self, **kwargs: Any) -> Any:
        """Write this entity as its policy says. As in ndb, and checked and fenced.

        Raises:
            WriteViolation: the policy does not allow it here and now; `LockIdMissing` when the
                entity does not say which lock guards it.

        The future raises `StaleWriteError` when the entity changed in
        Datastore since it was read, and `EntityExistsError` when it is new
        but exists already; nothing is overwritten then.
        """
        context = hooks.current_context()
        if context is None:
            raise ContextError()
        notes = self.__dict__
        self._userlock_wait_for_last_put()
        hooks.wait_for_entity(self, context)
        put_at = here() if "_userlock_put_at" not in notes else notes.pop("_userlock_put_at")
        notes["_userlock_putting"] = put_at, context
        try:
            future = super()._put_async(**kwargs)
        finally:
            notes.pop("_userlock_putting", None)
            write: FencedPut | None = notes.pop("_userlock_write", None)
        if write is not None:
            if not write.carried:
                write.carried = not hooks.uses_datastore(self._entity_key, context, kwargs)
            write.begun(future)
            if not future.done():
                notes["_userlock_pending"] = write
        return future

    put_async = _put_async

    @classmethod
    def _get_or_insert_async(cls, *args: Any, **kwargs: Any) -> Any:
        """Get the entity, or create it as its policy says. As in ndb."""
        get_or_insert: Any = super()._get_or_insert_async.__func__
        return get_or_insert(hooks.Creator(cls, here()), *args, **kwargs)

    get_or_insert_async = _get_or_insert_async

    def _prepare_for_put(self) -> None:
        """The last step before ndb reads the properties: hooks have run, so check now.

        ndb also calls it for entities within a property of another one, which
        are not put by themselves.
        """
        putting = self.__dict__.pop("_userlock_putting", None)
        if putting is None:
            super()._prepare_for_put()
            return
        put_at, context = putting
        now = Moment(put_at, context)
        stamp = stamp_of(self)
        if hooks.projection_of(self):
            check_whole(self, stamp, put_at, now)
        super()._prepare_for_put()
        lock_id = None
        tenures: tuple[Any, ...] = ()
        if self._userlock_rule is not None:
            lock_id, tenures = check_put(self, stamp, put_at, now)
        else:
            check_put_of_policy(self, self._write_policy, stamp, put_at, now)
        self.__dict__["_userlock_write"] = FencedPut(self, lock_id, stamp, tenures, put_at, now)
        if now.settings.stale_objects is not Reaction.OFF:
            watch_uses(Model)  # of the objects that are out of date from now on

    def _userlock_wait_for_last_put(self) -> None:
        """A second put of one object waits for the first, whose version it builds on."""
        write: FencedPut | None = self.__dict__.pop("_userlock_pending", None)
        if write is not None:
            hooks.wait_for(write.future, write.begun_in, write.begun_by)

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
            restamp(self, self._key, version, place_of_read())

    def __copy__(self) -> Any:
        return self._userlock_copied(lambda value: value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._userlock_copied(lambda value: copy.deepcopy(value, memo))

    def _userlock_copied(self, copied: Callable[[Any], Any]) -> Any:
        """Another object of the same entity, read when and where this one was."""
        other = type(self).__new__(type(self))
        for name, value in self.__dict__.items():
            if name in ATTRIBUTES:
                other.__dict__[name] = value
            elif not name.startswith("_userlock_"):
                other.__dict__[name] = copied(value)
        return other


def _check_hierarchy(cls: Any) -> None:
    """The keys of a `PolyModel` hierarchy name its root alone: deletes are checked by its policy.

    Raises:
        ConfigurationError: the root has none, or the class another one.
    """
    classes = [base for base in cls.__mro__ if issubclass(base, polymodel.PolyModel)][:-1]
    if not classes:
        return
    root = classes[-1]
    policy = getattr(root, "_write_policy", WritePolicy.ABSTRACT)
    if policy is WritePolicy.ABSTRACT:
        raise ConfigurationError(
            f"{root.__name__} is the root of the PolyModel hierarchy of {cls.__name__}, so its "
            f"write policy is what deletes are checked by, and it has none. Give it the one of "
            f"the classes below it (by the same rule for the lock id, if that is the user's lock)"
        )
    if cls._write_policy != policy:
        raise ConfigurationError(
            f"{cls.__name__} has the write policy '{cls._write_policy}', and {root.__name__}, "
            f"which its keys name, '{policy}'. A PolyModel hierarchy has one policy"
        )


class UserModel(Model):
    """A model whose entities belong to a user, and are written only under that user's lock.

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
    there is only a key; without it a delete is held to what the object says
    that was read under a lock held now, if there is one, and is else allowed
    under any lock. A method is also called when an entity is read under a lock, to see that its
    owner does not change until it is put, so it should read nothing but the
    entity.

    A model of another write policy may derive from it too, and needs no lock
    id; a common base class says `_write_policy = WritePolicy.ABSTRACT`.
    """

    _write_policy = WritePolicy.ABSTRACT
    _userlock_default_policy = WritePolicy.USER_LOCK


def models_without_policy(package: str) -> list[type]:
    """The models of a package that nothing is checked of: those of plain `ndb.Model`.

    For a test that holds a code base to having a policy in each. Only of
    modules that have been imported; in the order of their names.

    Args:
        package: the package or module that they are defined in or below.
    """

    def below(cls: Any) -> Iterator[type]:
        for each in cls.__subclasses__():
            if not issubclass(each, Model):
                yield each
                yield from below(each)

    found = {each for each in below(ndb.Model) if f"{each.__module__}.".startswith(f"{package}.")}
    return sorted(found, key=lambda each: (each.__module__, each.__qualname__))


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
hooks.install(ModelHandler(Model))
