"""Claims of entities: values that one entity at a time may have.

A model declares them in `_unique`. `claim_rows` writes the rows. This module is what
the model layer knows of them (`Model._userlock_rows`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

from google.cloud import ndb

from userlock.constraints import claim_rows
from userlock.constraints.claim_rows import Claim, Claims
from userlock.errors import ConfigurationError, LockIdError
from userlock.ndb.commits import Further
from userlock.ndb.context import current_attempt, in_transaction
from userlock.ndb.lock_ids import lock_id_for_put
from userlock.ndb.patches import is_complete, raw_key_of
from userlock.ndb.policies import WritePolicy

#: The property of an entity that lists its claims, and what looks after them in commits.
LIST = claim_rows.LIST
further: Further = claim_rows


class Constraint(Protocol):
    """A rule for values that one entity at a time may have: a `userlock.constraints.Unique`."""

    @property
    def name(self) -> str: ...

    @property
    def properties(self) -> tuple[str, ...]: ...

    def named(self, cls: Any) -> str:
        """Return its name with the kind of a model."""

    def check(self, cls: Any) -> None:
        """Raise `ConfigurationError` if it does not fit a model that is being defined."""

    def claim_of(self, entity: Any, lock_id: str | None) -> Claim | None:
        """Return the claim of an entity; None if it has none."""


def claims_property() -> Any:
    """Return the property with the keys of an entity's claims, which each put sets."""
    return ndb.KeyProperty(repeated=True, indexed=False)


def prepare(cls: Any, declared: Any, root: Any, of_root: Any) -> tuple[Constraint, ...]:
    """Return the constraints of a class that is being defined, which gets the list of its claims.

    `root`: the class that its keys name: for a `PolyModel`, the root of the hierarchy.

    Raises:
        ConfigurationError: they do not fit it, or are not those of the root.
    """
    if not all(hasattr(each, "claim_of") for each in declared):
        raise ConfigurationError(
            f"{cls.__name__}._unique must be a list of userlock.constraints.Unique, not "
            f"{declared!r:.200}"
        )
    policy = cls._write_policy
    if policy in (WritePolicy.NEVER_WRITTEN, WritePolicy.STRUCTURED_ONLY):
        raise ConfigurationError(
            f"{cls.__name__}._unique: its entities are never put, as its policy is '{policy}'"
        )
    if declared is not of_root:
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
    if LIST in vars(cls):
        raise ConfigurationError(
            f"{cls.__name__}.{LIST} is a name of the library's, for the keys of its claims. To fix "
            f"it: rename the property"
        )
    if policy is not WritePolicy.ABSTRACT:
        for each in declared:
            each.check(cls)
    if not hasattr(cls, LIST):
        setattr(cls, LIST, claims_property())
    return tuple(declared)


def listed(entity: Any) -> tuple[Any, ...] | None:
    """Return the keys of the claims that an entity lists; None if they are not known."""
    with contextlib.suppress(Exception):  # a projection; or malformed: they are looked up
        return tuple(getattr(entity, LIST))
    return None


def has_claims(cls: Any) -> bool:
    """Return whether a model has constraints."""
    return bool(cls._userlock_constraints)


def change(
    entity: Any, claims: Sequence[Claim], known: Sequence[Any] | None
) -> tuple[Claims | None, tuple[Any, ...]]:
    """List the claims in an entity that is about to be put.

    Returns:
        The claims, unless those in Datastore are the same for certain; and the keys of all.
    """
    keys = tuple(claim.key for claim in claims)
    setattr(entity, LIST, list(keys))
    if known is not None and set(known) == set(keys):
        return None, keys
    rows = [each._replace(key=raw_key_of(each.key)) for each in claims]
    return Claims(rows, [raw_key_of(each) for each in known or ()]), keys


def removal() -> Claims:
    """Return the claims of an entity that is deleted."""
    return Claims()


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


#: For the model layer.
wanted = claims_of


def claims_of_attempt() -> dict[Any, tuple[Any, ...]]:
    """Return the entities that the running transaction has put or deleted so far.

    By key (while that has no id, by another unique value), each with the keys of the claims that
    it will have. Empty outside of transactions.
    """
    if not in_transaction():
        return {}
    tickets = current_attempt().tickets
    return {each.key if is_complete(each.key) else each.number: each.claimed for each in tickets}
