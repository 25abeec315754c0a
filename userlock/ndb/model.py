"""`Model` and `UserModel`: base classes of models that are written under a write policy."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from google.cloud import ndb
from google.cloud.ndb import polymodel, tasklets
from google.cloud.ndb.exceptions import ContextError

from userlock.callsite import CallSite, here
from userlock.errors import ConfigurationError, EntityExistsError, EntityNotFound, StaleObjectPut
from userlock.lock.api import global_lock
from userlock.lock.lease import Priority, PriorityName
from userlock.ndb.checks import is_latest
from userlock.ndb.context import current_context
from userlock.ndb.lock_ids import LockRule, lock_id_of, lock_rule_of
from userlock.ndb.patches import key_of
from userlock.ndb.pending import watch_over
from userlock.ndb.policies import WritePolicy, settle_policy, watch
from userlock.ndb.provenance import Stamped, stamp_of
from userlock.ndb.writes import Put, writing

if TYPE_CHECKING:
    from userlock.ndb.typed import Query

_Entity = TypeVar("_Entity", bound="UserModel")


class WriteIdProperty(ndb.IntegerProperty):
    """A random number that is new in each put of an entity.

        class Learner(userlock.UserModel):
            _lock_id_from_key = userlock.key_id
            write_id = userlock.WriteIdProperty()

    By it, a put whose reply was lost is reported as landed if it has landed, and a transaction
    that was applied is not run again. The content alone does not tell: two requests may write
    the same. A new entity under an automatic id, put outside of transactions, remains
    `CommitInDoubt`: its key is not known.

    The put sets the value. The property is not indexed, and costs its name and eight bytes in
    each entity.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name, indexed=False)

    def __set_name__(self, owner: Any, name: str) -> None:
        self._attribute = name

    def renew(self, entity: Any) -> tuple[str, int]:
        """Set a new value. Returns the stored name of the property, and the value."""
        value = secrets.randbits(62)  # an integer in Datastore has 63 bits, and a sign
        setattr(entity, self._attribute, value)
        return self._name, value


def _write_id_of(cls: type) -> WriteIdProperty | None:
    """Return the write id of a model, which may come from a mixin."""
    values = (value for each in cls.__mro__ for value in vars(each).values())
    return next((value for value in values if isinstance(value, WriteIdProperty)), None)


class Model(Stamped, ndb.Model):
    """A model with one write policy, which says when its entities may be written.

        class Course(userlock.Model):
            _write_policy = userlock.WritePolicy.IN_TRANSACTION

    Models whose entities belong to a user derive from `UserModel`, which has a policy. A class
    without a policy, or with two, raises `ConfigurationError` when it is defined. A subclass has
    the policy of its base, unless it names another one.

    A new object with a key of its own does not overwrite an existing entity
    (`EntityExistsError`), unless the class says `_overwrites = True`. `_unique` lists the values
    that one entity at a time may have (`userlock.constraints.Unique`).

    A put or delete that the policy does not allow raises a `WriteViolation` before anything is
    sent. A put of an entity that has changed since its read raises `StaleWriteError`.
    """

    _write_policy: ClassVar[WritePolicy] = WritePolicy.ABSTRACT
    _overwrites: ClassVar[bool] = False
    _unique: ClassVar[Sequence[Any]] = ()
    _lock_id: ClassVar[Any] = None
    _lock_id_from_key: ClassVar[Any] = None

    #: Whether its writes are fenced whatever the settings say, and listeners hear of no refusal.
    _userlock_always_fenced: ClassVar[bool] = False
    #: Whether its entities stay for longer than a commit may be under way.
    _userlock_stays: ClassVar[bool] = False
    _userlock_default_policy: ClassVar[WritePolicy | None] = None
    #: The rule for lock ids, of a class under the user's lock.
    _userlock_rule: ClassVar[LockRule | None] = None
    #: Its `_unique`, and the module that looks after its rows: `userlock.constraints.claims`.
    _userlock_constraints: ClassVar[tuple[Any, ...]] = ()
    _userlock_rows: ClassVar[Any] = None
    #: Sets the value of its `WriteIdProperty`, if it has one.
    _userlock_new_write_id: ClassVar[Any] = None

    if TYPE_CHECKING:  # ndb's own methods, which have no types
        key: Any

        def __init__(self, **values: Any) -> None: ...
        @classmethod
        def get_by_id(
            cls,
            id: str | int,  # noqa: A002 (ndb's name)
            parent: Any = None,
            namespace: str | None = None,
            **options: Any,
        ) -> Self | None: ...
        @classmethod
        def query(cls, *filters: Any, **options: Any) -> Query[Self]: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        policy = settle_policy(cls, cls._userlock_default_policy)
        cls._write_policy = policy
        root = _root_of(cls)
        if issubclass(cls, polymodel.PolyModel):
            _check_hierarchy(cls, root)
        cls._userlock_rule = lock_rule_of(cls) if policy is WritePolicy.USER_LOCK else None
        _prepare_rows(cls, root)
        write_id = _write_id_of(cls)
        if write_id is not None:
            cls._userlock_new_write_id = write_id.renew
        if cls.__module__ != __name__:  # the base classes of this module have no kind
            watch(cls._get_kind(), root)

    def put(self, *, unguarded: str | None = None, **options: Any) -> ndb.Key:
        """Write this entity as `put_async` does, and wait. As in ndb, it calls no override."""
        key: ndb.Key = self._userlock_put_async(unguarded=unguarded, **options).result()
        return key

    def put_async(self, *, unguarded: str | None = None, **kwargs: Any) -> Any:
        """Write this entity as in ndb, checked by its policy and fenced.

        Args:
            unguarded: the reason for which it is not checked. It is fenced all the same.
            **kwargs: the options of ndb.

        Raises:
            ValueError: `unguarded` is no reason.
            WriteViolation: the policy does not allow it here and now.
            WriteNotFenced: it was read without its version.
            StaleWriteError: by the future: the entity has changed since its read.
            EntityExistsError: by the future: it is new but exists already.
        """
        context = current_context()
        if context is None:
            raise ContextError()
        creator = _creators.pop(id(self), None) if _creators else None
        place, inserts = (creator.place, True) if creator else (here(), False)
        key = self._userlock_key
        write = Put(type(self), key, place, context, unguarded, entity=self, inserts=inserts)
        return write.begin(super().put_async, **kwargs)

    _put_async = _userlock_put_async = put_async  # the first name is that of ndb's own `put`

    def _prepare_for_put(self) -> None:
        """Check the put. This is ndb's last step before it reads the properties, after the hooks;
        also of an entity within a property of another one, which is not put by itself."""
        current = writing()
        if current is None or current.entity is not self or current.checked:
            super()._prepare_for_put()
        else:
            current.check(super()._prepare_for_put)

    @classmethod
    def get_or_insert_async(cls, *args: Any, **kwargs: Any) -> Any:
        """Get the entity, or create it as its policy says. As in ndb. If two requests create it at
        once, the second one gets the entity of the first."""
        get_or_insert: Any = super().get_or_insert_async.__func__
        creator = _Creator(cls, here())
        return watch_over(_with_existing(creator, get_or_insert(creator, *args, **kwargs)))

    _get_or_insert_async = _userlock_get_or_insert_async = get_or_insert_async

    @classmethod
    def get_or_insert(cls, *args: Any, **kwargs: Any) -> Self:
        """Get the entity, or create it, as `get_or_insert_async` does, and wait."""
        entity: Self = cls._userlock_get_or_insert_async(*args, **kwargs).result()
        return entity

    def to_dict(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return the values of the properties, as in ndb. The claims are not among them."""
        values: dict[str, Any] = super().to_dict(include=include, exclude=exclude)
        if self._userlock_rows is not None:
            values.pop(self._userlock_rows.LIST, None)
        return values


@tasklets.tasklet
def _with_existing(creator: _Creator, future: Any) -> Any:
    """Give the entity that another request has created between ndb's look-up and its put."""
    try:
        entity = yield future
    except (EntityExistsError, StaleObjectPut) as error:
        if creator.entity is None or error.key != key_of(creator.entity):
            raise  # a hook has put another entity
        entity = yield error.key.get_async(use_cache=False, use_global_cache=False)
        if entity is None:
            raise  # it has been deleted meanwhile
    finally:
        _creators.pop(id(creator.entity), None)  # if ndb has not put it
    return entity


class _Creator:
    """A proxy of the model class in ndb's `get_or_insert`, which creates the entity by calling it.
    The put, perhaps on a later turn of the event loop, has the call site of `get_or_insert`."""

    def __init__(self, cls: Any, place: CallSite | None) -> None:
        self._cls = cls
        self.place = place
        self.entity: Any = None

    def __call__(self, **kwargs: Any) -> Any:
        self.entity = entity = self._cls(**kwargs)
        _creators[id(entity)] = self
        return entity

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cls, name)


#: Those whose entities ndb is about to put, by the id of the entity, which they keep.
_creators: dict[int, _Creator] = {}


def _prepare_rows(cls: Any, root: Any) -> None:
    """Give a class what its `_unique` needs, or raise ConfigurationError."""
    declared = cls._unique
    cls._userlock_rows, cls._userlock_constraints = None, ()
    is_list = isinstance(declared, list | tuple)
    if not (is_list and all(hasattr(each, "rows_of_model") for each in declared)):
        raise ConfigurationError(
            f"{cls.__name__}._unique must be a list of userlock.constraints.Unique, not "
            f"{declared!r:.200}"
        )
    if declared:
        cls._userlock_rows = declared[0].rows_of_model
        cls._userlock_constraints = cls._userlock_rows.prepare(cls, declared, root, root._unique)


def _root_of(cls: Any) -> Any:
    """Return the class that names the kind: for a `PolyModel`, the root of its hierarchy."""
    classes = [base for base in cls.__mro__ if issubclass(base, polymodel.PolyModel)][:-1]
    return classes[-1] if classes else cls


def _check_hierarchy(cls: Any, root: Any) -> None:
    """Check a `PolyModel`: its keys name the root of its hierarchy alone, so deletes obey that."""
    policy = getattr(root, "_write_policy", WritePolicy.ABSTRACT)
    if policy is WritePolicy.ABSTRACT:
        raise ConfigurationError(
            f"{root.__name__} is the root of the PolyModel hierarchy of {cls.__name__}. Deletes "
            f"are checked by its write policy, and it has none. To fix it: give it the policy of "
            f"the classes below it (and the same rule for the lock id, if that is the user's lock)"
        )
    if cls._write_policy != policy:
        raise ConfigurationError(
            f"{cls.__name__} has the write policy '{cls._write_policy}', and {root.__name__}, "
            f"which its keys name, '{policy}'. A PolyModel hierarchy has one policy"
        )
    for name in ("_lock_id", "_lock_id_from_key"):
        rule, of_root = (getattr(each, name) for each in (cls, root))
        if getattr(rule, "__func__", rule) != getattr(of_root, "__func__", of_root):
            raise ConfigurationError(
                f"{cls.__name__}.{name} is not that of {root.__name__}, the root of its PolyModel "
                f"hierarchy, which its keys name. A delete would take another lock than a put. "
                f"To fix it: say which lock guards them in {root.__name__} alone"
            )


class UserModel(Model):
    """A model whose entities belong to a user, and are written only under that user's lock.

    Each class says how to find the lock id:

        class Learner(UserModel):
            _lock_id_from_key = userlock.key_id       # the key's own id names the user

        class VideoLog(UserModel):
            _lock_id = "learner_id"                   # a property holds it
            learner_id = ndb.StringProperty(required=True)

        class Note(UserModel):
            def _lock_id(self) -> str: ...            # a method computes it
            @classmethod
            def _lock_id_from_key(cls, key) -> str: ...

    `_lock_id_from_key` (also `userlock.root_id`) serves deletes too, which have only a key.
    Without it, a delete uses the lock id of the object, if that was read under a lock that is
    still held, and else needs any lock: it relies on each one held. A method is also called at a
    read under a lock, to detect a change of the owner before the put, so it should read only the
    entity.

    A model of another write policy may derive from it too, and needs no lock id. A common base
    class says `_write_policy = WritePolicy.ABSTRACT`.
    """

    _write_policy = WritePolicy.ABSTRACT
    _userlock_default_policy = WritePolicy.USER_LOCK


def models_without_policy(package: str) -> list[type]:
    """Return the models that derive from plain `ndb.Model`, so that they are not checked.

    They are those of imported modules of a package (or module), by name. A test may require that
    there are none.

    Raises:
        ValueError: no module of that name is imported.
    """
    if package not in sys.modules:
        raise ValueError(
            f"no module {package!r} is imported. To fix it: import it, or correct the name"
        )

    def below(cls: Any) -> Iterator[type]:
        for each in cls.__subclasses__():
            if not issubclass(each, Model):
                yield each
                yield from below(each)

    found = {each for each in below(ndb.Model) if f"{each.__module__}.".startswith(f"{package}.")}
    return sorted(found, key=lambda each: (each.__module__, each.__qualname__))


@contextlib.contextmanager
def fetch_under_user_write_lock(
    entity: _Entity,
    *,
    wait_timeout: float | None = None,
    lock_timeout: float | None = None,
    priority: Priority | PriorityName | None = None,
    max_waiting: int | None = None,
) -> Iterator[_Entity]:
    """Hold the entity's lock for a block, and give an object that may be put in it: the entity
    itself if it is new or was read under the current tenure and no newer version is known, else one
    read afresh. If the entity was given to another user meanwhile, the lock is that user's.

    Raises:
        EntityNotFound: it has been deleted meanwhile.
        LockTimeout, LockServiceUnavailable: as `global_lock`.
        LockIdError: the entity does not say which lock guards it.
    """
    if not isinstance(entity, UserModel):
        raise TypeError(
            f"fetch_under_user_write_lock() takes a UserModel, not {type(entity).__name__}"
        )
    while True:
        lock_id = lock_id_of(entity)
        lock = global_lock(
            lock_id,
            wait_timeout=wait_timeout,
            lock_timeout=lock_timeout,
            priority=priority,
            max_waiting=max_waiting,
        )
        with lock as tenure:
            stamp = stamp_of(entity)
            if stamp is not None and not is_latest(entity, stamp, tenure):
                fresh: _Entity | None = entity._userlock_key.get()
                if fresh is None:
                    raise EntityNotFound(entity._userlock_key)
                entity = fresh
            if lock_id_of(entity) == lock_id:  # else it was given to another user meanwhile
                yield entity
                return
