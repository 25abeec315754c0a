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
from google.cloud.ndb import polymodel, tasklets
from google.cloud.ndb.exceptions import ContextError

from userlock.callsite import CallSite, here
from userlock.errors import ConfigurationError, EntityExistsError, EntityNotFound, StaleObjectPut
from userlock.lock.api import global_lock
from userlock.lock.lease import Priority
from userlock.lock.scope import current_scope
from userlock.ndb import hooks as _hooks  # noqa: F401  (installs itself in ndb)
from userlock.ndb.checks import check_put, check_put_of_policy, check_whole
from userlock.ndb.context import current_context
from userlock.ndb.enforcement import Moment, place_of_read
from userlock.ndb.fencing import PutTicket
from userlock.ndb.lock_ids import LockRule, lock_id_of, lock_rule_of
from userlock.ndb.patches import key_of, name_early, projection_of
from userlock.ndb.policies import WritePolicy, settle_policy, watch
from userlock.ndb.provenance import ATTRIBUTES, DELETED, Stamped, restamp, stamp_of
from userlock.ndb.transactions import wait_for_key, watch_over
from userlock.ndb.writing import Writing, writing


class Model(Stamped, ndb.Model):
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
    #: Makes the mark of a put, where it has a `WriteIdProperty`.
    _userlock_mark: ClassVar[Any] = None
    #: The key that was allocated for it in a transaction, which may not have been committed.
    _userlock_allocated: Any = None
    #: Of a new entity that `get_or_insert` is about to put.
    _userlock_creator: _Creator | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        policy = settle_policy(cls, cls._userlock_default_policy)
        cls._write_policy = policy
        _check_hierarchy(cls)
        cls._userlock_rule = lock_rule_of(cls) if policy is WritePolicy.USER_LOCK else None
        name_early(cls, ATTRIBUTES)
        if cls.__module__ != __name__:  # base classes of ours have no kind
            watch(cls._get_kind(), _root_of(cls))

    # ndb calls these by either name.
    def _put_async(self, **kwargs: Any) -> Any:
        """Write this entity as its policy says. As in ndb, and checked and fenced.

        Raises:
            WriteViolation: the policy does not allow it here and now; `LockIdMissing` when the
                entity does not say which lock guards it.
            WriteNotFenced: it was read without its version.

        The future raises `StaleWriteError` when the entity changed in
        Datastore since it was read, and `EntityExistsError` when it is new
        but exists already; nothing is overwritten then.
        """
        context = current_context()
        if context is None:
            raise ContextError()
        put = super()._put_async
        # `get_or_insert` creates it, perhaps on a later turn of the event loop.
        creator = self._userlock_creator
        if creator is None:
            write = Writing(self, here(), context)
        else:
            del self._userlock_creator
            write = Writing(self, creator.place, context, inserts=True)
        return write.begin(lambda: put(**kwargs))

    put_async = _userlock_put_async = _put_async

    @classmethod
    def get_or_insert_async(cls, *args: Any, **kwargs: Any) -> Any:
        """Get the entity, or create it as its policy says.

        As in ndb, but of two that create it at once, the second is given the first one's.
        """
        get_or_insert: Any = super().get_or_insert_async.__func__
        creator = _Creator(cls, here())
        found = _with_what_exists(creator, get_or_insert(creator, *args, **kwargs))
        scope = current_scope()
        return watch_over(found, () if scope is None else scope.held.values())

    @classmethod
    def get_or_insert(cls, *args: Any, **kwargs: Any) -> Any:
        """Get the entity, or create it: `get_or_insert_async`, and wait."""
        return cls.get_or_insert_async(*args, **kwargs).result()

    def _prepare_for_put(self) -> None:
        """The last step before ndb reads the properties: hooks have run, so check now.

        ndb also calls it for entities within a property of another one, which
        are not put by themselves.
        """
        current = writing()
        if current is None or current.entity is not self or current.ticket is not None:
            super()._prepare_for_put()
            return
        put_at, context = current.at, current.context
        if projection_of(self):
            check_whole(self, stamp_of(self), put_at, Moment(put_at, context))
        super()._prepare_for_put()
        wait_for_key(self._key, context)
        # From here on nothing of the application's runs until the ticket is made.
        now = Moment(put_at, context)
        stamp = stamp_of(self)
        lock_id = None
        tenures: tuple[Any, ...] = ()
        if self._userlock_rule is not None:
            lock_id, tenures = check_put(self, stamp, put_at, now)
        else:
            check_put_of_policy(self, self._write_policy, stamp, put_at, now)
        current.ticket = PutTicket(
            self, lock_id, stamp, tenures, put_at, now, inserts=current.inserts
        )

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
        return self._userlock_copied({}, lambda value: value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._userlock_copied(memo, lambda value: copy.deepcopy(value, memo))

    def _userlock_copied(self, memo: dict[int, Any], copied: Callable[[Any], Any]) -> Any:
        """Return another object of the same entity, read when and where this one was."""
        other = type(self).__new__(type(self))
        memo[id(self)] = other  # entities may refer to each other
        for name, value in self.__dict__.items():
            if name in ATTRIBUTES:
                other.__dict__[name] = value
            elif not name.startswith("_userlock_"):
                other.__dict__[name] = copied(value)
        return other


@tasklets.tasklet
def _with_what_exists(creator: _Creator, future: Any) -> Any:
    """Give the entity that somebody else has created between ndb's look-up and its put."""
    try:
        entity = yield future
    except (EntityExistsError, StaleObjectPut) as error:
        if error.key != creator.key:
            raise  # another one, that a hook has put
        entity = yield error.key.get_async(use_cache=False, use_global_cache=False)
        if entity is None:
            raise  # it has been deleted meanwhile
    return entity


class _Creator:
    """Stands for the model class in ndb's `get_or_insert`.

    ndb creates the entity there and puts it, perhaps on a later turn of the
    event loop. Entities created through this record the call site of
    `get_or_insert`.
    """

    def __init__(self, cls: Any, place: CallSite | None) -> None:
        self._cls = cls
        self.place = place
        self._entity: Any = None

    def __call__(self, **kwargs: Any) -> Any:
        entity = self._cls(**kwargs)
        self._entity = entity
        entity._userlock_creator = self
        return entity

    @property
    def key(self) -> Any:
        """Return the key of the entity that was created, or None."""
        return None if self._entity is None else key_of(self._entity)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cls, name)


def _root_of(cls: Any) -> Any:
    """Return the class that names the kind: of a `PolyModel`, the root of its hierarchy."""
    classes = [base for base in cls.__mro__ if issubclass(base, polymodel.PolyModel)][:-1]
    return classes[-1] if classes else cls


def _check_hierarchy(cls: Any) -> None:
    """The keys of a `PolyModel` hierarchy name its root alone: deletes are checked by its policy.

    Raises:
        ConfigurationError: the root has none, or the class another one.
    """
    root = _root_of(cls)
    if not issubclass(cls, polymodel.PolyModel):
        return
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
    for name in ("_lock_id", "_lock_id_from_key"):
        rule, of_root = (
            getattr(getattr(each, name), "__func__", getattr(each, name)) for each in (cls, root)
        )
        if rule != of_root:
            raise ConfigurationError(
                f"{cls.__name__}.{name} is not that of {root.__name__}, the root of its PolyModel "
                f"hierarchy, which its keys name: a delete would take another lock than a put. "
                f"Say which lock guards them in {root.__name__} alone"
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
    """Return the models of a package that nothing is checked of: those of plain `ndb.Model`.

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
