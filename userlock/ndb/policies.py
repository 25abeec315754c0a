"""Write policies: how the entities of a model are kept from overwriting each other.

Each class names exactly one, and is refused when it is defined without one, or
with two: who writes a model should never have to guess.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from userlock.errors import ConfigurationError


@dataclasses.dataclass(frozen=True, slots=True)
class WritePolicy:
    """The conditions under which a model's entities are written; `_write_policy` of its class.

    A write that the policy does not allow is a `WriteViolation`, raised before
    anything is sent. All writes are fenced, whatever the policy.

    Attributes:
        name: the policy, in words.
        reason: for `unsafe`, why.
    """

    name: str
    reason: str = ""

    #: Read and written under the user's lock. What a `UserModel` has if it says nothing else.
    USER_LOCK: ClassVar[WritePolicy]
    #: Read and written in one transaction.
    IN_TRANSACTION: ClassVar[WritePolicy]
    #: Created, and never changed. May be deleted.
    WRITE_ONCE: ClassVar[WritePolicy]
    #: Neither written nor deleted by this code base.
    NEVER_WRITTEN: ClassVar[WritePolicy]
    #: Written and deleted by batch work only: in a batch scope (cron, task queues, scripts) that
    #: is not one by a header alone that anybody can send.
    BATCH_ONLY: ClassVar[WritePolicy]
    #: A base class without entities of its own. Not inherited.
    ABSTRACT: ClassVar[WritePolicy]
    #: Has no entities, only values of structured properties.
    STRUCTURED_ONLY: ClassVar[WritePolicy]

    @staticmethod
    def unsafe(reason: str) -> WritePolicy:
        """Nothing is checked.

        Args:
            reason: why this is right, for whoever reads the code next.

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

_CHOICES = (
    "WritePolicy.IN_TRANSACTION, WRITE_ONCE, NEVER_WRITTEN, BATCH_ONLY, STRUCTURED_ONLY, "
    "ABSTRACT (a base class without entities of its own) or unsafe('why')"
)


def settle_policy(cls: type, default: WritePolicy | None) -> WritePolicy:
    """Return the one policy of a class that is being defined.

    The class's own word counts: `_write_policy`, or a lock rule, which says
    that it is written under the user's lock. Else that of its bases, if they
    agree. Else the default.

    Raises:
        ConfigurationError: it has none, or two. Says which, and what to do.
    """
    own = _named_by(cls)
    if len(own) > 1:
        (first, by_first), (second, by_second) = own.items()
        raise ConfigurationError(
            f"{cls.__name__} names two write policies: {first} (by `{by_first}`) and {second} "
            f"(by `{by_second}`). A model has exactly one: take away one of the two lines"
        )
    if own:
        return next(iter(own))
    inherited = _inherited_by(cls)
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


def _named_by(cls: type) -> dict[WritePolicy, str]:
    """Return the policies that a class names itself, and by which attribute."""
    attributes = vars(cls)
    own = {}
    named = attributes.get("_write_policy")
    if named is not None:
        if not isinstance(named, WritePolicy):
            raise ConfigurationError(
                f"{cls.__name__}._write_policy must be exactly one policy (userlock.{_CHOICES}), "
                f"not {named!r:.200}"
            )
        own[named] = "_write_policy"
    if named != WritePolicy.ABSTRACT:  # which may have a rule for those below
        for rule in ("_lock_id", "_lock_id_from_key"):
            if attributes.get(rule) is not None:
                own.setdefault(WritePolicy.USER_LOCK, rule)
    return own


def _inherited_by(cls: type) -> dict[WritePolicy, str]:
    """Return the policies of a class's bases, and from which."""
    inherited: dict[WritePolicy, str] = {}
    for base in cls.__bases__:
        policy = getattr(base, "_write_policy", None)
        if policy is not None and policy != WritePolicy.ABSTRACT:
            inherited.setdefault(policy, base.__name__)
    return inherited


def policy_for_message(cls: Any) -> str:
    """For the message of a violation: the policy; empty for the lock, whose id it names."""
    policy = cls._write_policy
    return "" if policy is WritePolicy.USER_LOCK else str(policy)
