"""Write policies: the conditions under which the entities of a model are written.

Each class has exactly one. Kinds of classes with a policy are *watched*: their writes pass
the gate only with a ticket (`stub`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from userlock.errors import ConfigurationError


@dataclasses.dataclass(frozen=True, slots=True)
class WritePolicy:
    """The conditions for writes of a model; the value of `_write_policy` in its class.

    A write that it does not allow raises a `WriteViolation` before anything is sent. Writes are
    fenced under every policy.

    Attributes:
        name: the policy, in words.
        reason: the reason given for `unsafe`.
    """

    name: str
    reason: str = ""

    #: Read and written under the user's lock. The default of a `UserModel`.
    USER_LOCK: ClassVar[WritePolicy]
    #: Read and written in one transaction.
    IN_TRANSACTION: ClassVar[WritePolicy]
    #: Created, and never changed. May be deleted.
    WRITE_ONCE: ClassVar[WritePolicy]
    #: Neither written nor deleted by this code base.
    NEVER_WRITTEN: ClassVar[WritePolicy]
    #: Written and deleted in a batch scope only (cron, task queues, scripts). A header that any
    #: client can send does not make a scope a batch scope for this.
    BATCH_ONLY: ClassVar[WritePolicy]
    #: A base class without entities of its own. Not inherited.
    ABSTRACT: ClassVar[WritePolicy]
    #: Has no entities, only values of structured properties.
    STRUCTURED_ONLY: ClassVar[WritePolicy]

    @staticmethod
    def unsafe(reason: str) -> WritePolicy:
        """Check nothing. `reason` tells the next reader of the code why that is right.

        Raises:
            ValueError: no reason is given.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError("unsafe() needs a reason: say why writing unprotected is right")
        return WritePolicy("unsafe", reason)

    @property
    def is_unsafe(self) -> bool:
        """Return whether nothing is checked."""
        return self.name == "unsafe"

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


WritePolicy.USER_LOCK = WritePolicy("under the user's lock")
WritePolicy.IN_TRANSACTION = WritePolicy("in a transaction")
WritePolicy.WRITE_ONCE = WritePolicy("written once")
WritePolicy.NEVER_WRITTEN = WritePolicy("never written")
WritePolicy.BATCH_ONLY = WritePolicy("written by batch work only")
WritePolicy.ABSTRACT = WritePolicy("abstract")
WritePolicy.STRUCTURED_ONLY = WritePolicy("structured only")

_KNOWN = [each for each in vars(WritePolicy).values() if isinstance(each, WritePolicy)]

_CHOICES = (
    "WritePolicy.IN_TRANSACTION, WRITE_ONCE, NEVER_WRITTEN, BATCH_ONLY, STRUCTURED_ONLY, "
    "ABSTRACT (a base class without entities of its own) or unsafe('why')"
)


def settle_policy(cls: type, default: WritePolicy | None) -> WritePolicy:
    """Return the one policy of a class that is being defined, or raise ConfigurationError.

    Its own `_write_policy` or lock rule counts (a rule implies the user's lock), then the policy
    of its bases, then the default.
    """
    own = _named_by(cls)
    if len(own) > 1:
        (first, by_first), (second, by_second) = own.items()
        raise ConfigurationError(
            f"{cls.__name__} names two write policies: {first} (by `{by_first}`) and {second} "
            f"(by `{by_second}`). A model has exactly one. To fix it: remove one of the two lines"
        )
    if own:
        return next(iter(own))
    inherited: dict[WritePolicy, str] = {}
    for base in cls.__bases__:
        policy = getattr(base, "_write_policy", None)
        if policy is not None:
            _check(policy, base)
        if policy not in (None, WritePolicy.ABSTRACT):
            inherited.setdefault(policy, base.__name__)
    if len(inherited) > 1:
        (first, from_first), (second, from_second), *_ = inherited.items()
        raise ConfigurationError(
            f"{cls.__name__} inherits two write policies: {first} (from {from_first}) and "
            f"{second} (from {from_second}). Say which one it has: set "
            f"`_write_policy = userlock.WritePolicy.…`"
        )
    if inherited:
        return next(iter(inherited))
    if default is not None:
        return default
    raise ConfigurationError(
        f"{cls.__name__} names no write policy. Say how its entities are written safely: derive "
        f"it from userlock.UserModel if they belong to a user, or set `_write_policy` to one of "
        f"userlock.{_CHOICES}"
    )


def _check(policy: object, cls: type) -> None:
    """Refuse what a class names as its policy if it is not one of those that exist."""
    unsafe = isinstance(policy, WritePolicy) and policy.is_unsafe and policy.reason
    if not (unsafe or any(policy is each for each in _KNOWN)):
        raise ConfigurationError(
            f"{cls.__name__}._write_policy must be exactly one policy (userlock.{_CHOICES}), not "
            f"{policy!r:.200}"
        )


def _named_by(cls: type) -> dict[WritePolicy, str]:
    """Return the policies that a class names itself, each with the attribute that names it."""
    attributes = vars(cls)
    own = {}
    named = attributes.get("_write_policy")
    if named is not None:
        _check(named, cls)
        own[named] = "_write_policy"
    if named != WritePolicy.ABSTRACT:  # an abstract class may have a rule for its subclasses
        for rule in ("_lock_id", "_lock_id_from_key"):
            if attributes.get(rule) is not None:
                own.setdefault(WritePolicy.USER_LOCK, rule)
    return own


#: The class of each watched kind. As in ndb, the latest one counts.
_classes: dict[str, Any] = {}

watch: Callable[[str, Any], None] = _classes.__setitem__
#: Returns the class of a kind, or None if it is not watched.
watched_class: Callable[[str], Any] = _classes.get
is_watched: Callable[[str], bool] = _classes.__contains__  # returns whether a kind is watched
