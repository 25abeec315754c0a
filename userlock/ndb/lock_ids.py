"""The lock that guards an entity: named by a property, a method, or the key."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.errors import ConfigurationError, LockIdError
from userlock.ids import are_plain, show_key
from userlock.lock.lease import check_lock_id
from userlock.ndb.patches import is_complete, key_of, kind_of
from userlock.ndb.policies import WritePolicy, watched_class


def key_id(key: Any) -> str | int | None:
    """Return the key's own id or name as the lock id (None while it has none yet)."""
    found: str | int | None = key.flat()[-1]
    return found


def root_id(key: Any) -> str | int | None:
    """Return the id or name of the key's root as the lock id: the user above the entity."""
    found: str | int | None = key.flat()[1]
    return found


class LockRule(NamedTuple):
    """The rule by which a class finds the lock ids of its entities."""

    read: Callable[[Any], object]  # gives an entity's lock id, not checked
    source: str  # the place of the rule, in words
    by_key: bool  # the key contains it, so it never changes once Datastore has allocated an id


def lock_rule_of(cls: Any) -> LockRule:
    """Return the rule of a class under the user's lock, or raise ConfigurationError."""
    rule, from_key = cls._lock_id, cls._lock_id_from_key
    if isinstance(rule, str):
        if isinstance(getattr(cls, rule, None), ndb.Property):
            return LockRule(operator.attrgetter(rule), f"its property {rule!r}", by_key=False)
        wrong = f"._lock_id = {rule!r} names no property of {cls.__name__}"
    elif from_key is not None and not callable(from_key):
        wrong = (
            f"._lock_id_from_key must be a function of a key, such as userlock.key_id, or a class "
            f"method, not {from_key!r:.200}"
        )
    elif callable(rule):
        read = operator.methodcaller("_lock_id")
        return LockRule(read, f"{cls.__name__}._lock_id()", by_key=False)
    elif rule is not None:
        wrong = f"._lock_id must be the name of a property or a method, not {rule!r}"
    elif from_key is not None:
        return LockRule(_from_key, _key_rule(cls), by_key=True)
    else:
        wrong = (
            " does not say which lock guards it. Set `_lock_id_from_key = userlock.key_id` if its "
            'key\'s id is the lock id, or `_lock_id = "user_id"` if a property holds it; or give '
            "it another policy: `_write_policy = userlock.WritePolicy.ABSTRACT` if it is a base "
            "class without entities of its own"
        )
    raise ConfigurationError(f"{cls.__name__}{wrong}")


def _from_key(entity: Any) -> object:
    key = entity._userlock_key
    return None if key is None else type(entity)._lock_id_from_key(key)


def _key_rule(cls: Any) -> str:
    return f"{cls.__name__}._lock_id_from_key()"


def lock_id_of(entity: Any) -> str:
    """Return the lock that guards an entity. Raises LockIdError: the entity does not say."""
    policy = type(entity)._write_policy
    if policy is not WritePolicy.USER_LOCK:
        raise LockIdError(f"{_what(entity)} has no lock: its write policy is '{policy}'")
    lock_id = lock_id_for_put(entity)
    if lock_id is None:
        raise LockIdError(f"{_what(entity)} has no id yet, and its id would name its lock")
    return lock_id


def lock_id_for_put(entity: Any) -> str | None:
    """Return the lock id of an entity under the user's lock, or raise LockIdError; None while
    Datastore is still to allocate the id that names the lock."""
    rule: LockRule = entity._userlock_rule
    try:
        value = rule.read(entity)
    except Exception as error:
        raise _no_lock_id(_what(entity), rule.source, error) from error
    if type(value) is str and value:
        return value
    if value is None and rule.by_key and not is_complete(key_of(entity)):
        return None
    return _checked(value, _what(entity), rule.source)


def lock_id_of_key(cls: Any, key: Any) -> str | None:
    """Return the lock id that a key contains, or None. Raises LockIdError if the rule fails."""
    if cls._write_policy is not WritePolicy.USER_LOCK or cls._lock_id_from_key is None:
        return None
    try:
        value = cls._lock_id_from_key(key)
    except Exception as error:
        raise _no_lock_id(show_key(key), _key_rule(cls), error) from error
    if value is None or (type(value) is str and value):
        return value
    return _checked(value, show_key(key), _key_rule(cls))


def names_lock(key: Any) -> bool:
    """Return whether a key tells the lock of its entity, if that has one."""
    cls = watched_class(kind_of(key))
    if cls is None or cls._write_policy is not WritePolicy.USER_LOCK:
        return True
    return cls._lock_id_from_key is not None


def _what(entity: Any) -> str:
    key = entity._userlock_key
    return f"a new {type(entity)._get_kind()}" if key is None else show_key(key)


def _checked(value: object, what: str, source: str) -> str:
    try:
        return check_lock_id(value)
    except (TypeError, ValueError) as error:
        said = f"{value!r:.200}" if are_plain() else f"a {type(value).__name__}"
        gives = f"{source} gives {said}, not a non-empty string or a number"
        if isinstance(value, str) and value:
            gives = f"{source}: {error}"
        raise _no_lock_id(what, gives) from None


def _no_lock_id(what: str, reason: str, failed: Exception | None = None) -> LockIdError:
    if failed is not None:
        reason = f"{reason} failed ({type(failed).__name__}: {failed})"
    error = LockIdError(f"{what} has no lock id: {reason}")
    error.reason = reason
    return error
