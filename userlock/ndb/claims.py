"""Claims of entities: values that one entity at a time may have.

A model declares them in `_unique`. `userlock.constraints` has the constraints,
`claim_rows` writes the rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from google.cloud import ndb

from userlock.errors import ConfigurationError, LockIdError
from userlock.ndb.claim_rows import LIST
from userlock.ndb.lock_ids import lock_id_for_put
from userlock.ndb.policies import WritePolicy


class Claim(NamedTuple):
    """A value that an entity is to have alone."""

    key: Any  # the `ndb.Key` of its row
    constraint: str
    value: str  # for people


class Constraint(Protocol):
    """A rule for values that one entity at a time may have: a `userlock.constraints.Unique`."""

    @property
    def name(self) -> str: ...

    def check(self, cls: Any) -> None:
        """Raise `ConfigurationError` if it does not fit a model that is being defined."""

    def claim_of(self, entity: Any, lock_id: str | None) -> Claim | None:
        """Return the claim of an entity; None if it has none."""


class ClaimsProperty(ndb.KeyProperty):
    """The keys of an entity's claims, set by each put. Part of the entity, but not of `to_dict`."""

    def __init__(self, name: str | None = None, **options: Any) -> None:
        super().__init__(name, repeated=True, indexed=False, **options)

    def _get_for_dict(self, entity: Any) -> Any:
        raise ndb.UnprojectedPropertyError


def constraints_of(cls: Any, root: Any) -> tuple[Constraint, ...]:
    """Return the constraints of a class that is being defined.

    Args:
        cls: the class.
        root: the class that its keys name: for a `PolyModel`, the root of the hierarchy.

    Raises:
        ConfigurationError: they do not fit it, or are not those of the root.
    """
    declared = cls._unique
    if not isinstance(declared, list | tuple) or not all(
        hasattr(each, "claim_of") for each in declared
    ):
        raise ConfigurationError(
            f"{cls.__name__}._unique must be a list of userlock.constraints.Unique, not "
            f"{declared!r:.200}"
        )
    if not declared:
        return ()
    policy = cls._write_policy
    if policy in (WritePolicy.NEVER_WRITTEN, WritePolicy.STRUCTURED_ONLY):
        raise ConfigurationError(
            f"{cls.__name__}._unique: its entities are never put, as its policy is '{policy}'"
        )
    if declared is not root._unique:
        raise ConfigurationError(
            f"{cls.__name__}._unique is not that of {root.__name__}, the root of its PolyModel "
            f"hierarchy, which its keys name: a delete would leave its claims. To fix it: say what "
            f"is unique in {root.__name__} alone"
        )
    names = [each.name for each in declared]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"{cls.__name__}._unique has two constraints of one name among {', '.join(names)}. To "
            f"fix it: give name="
        )
    if policy is not WritePolicy.ABSTRACT:
        for each in declared:
            each.check(cls)
    return tuple(declared)


def claims_of(entity: Any) -> list[Claim]:
    """Return the claims of an entity by its present values. Calls functions of the application.

    Raises:
        LockIdError: a constraint per owner, and the entity does not say which lock guards it.
    """
    lock_id = None
    if entity._userlock_rule is not None:
        with contextlib.suppress(LockIdError):
            lock_id = lock_id_for_put(entity)
    claims = (each.claim_of(entity, lock_id) for each in entity._userlock_constraints)
    return [claim for claim in claims if claim is not None]


def set_claims(entity: Any, claims: Sequence[Claim]) -> None:
    """List the claims in the entity, which is about to be put."""
    setattr(entity, LIST, [claim.key for claim in claims])
