"""Claims: values that one entity at a time may have. A model declares them in `_unique`.

    UserLockClaim Project.title=["…"]       holder: Project 7
    Project 7                               userlock_claims: its rows

A row and its holder's list change in one commit, so a row counts if its holder lists it. One that
its holder does not list, or whose holder is gone, is void: some other program has written the
entity. Whoever wants the value may have it.

This module is what the model layer knows of claims (`Model._userlock_rows`), and what looks after
them in commits (`userlock.ndb.commits.Write.further`).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from google.cloud import ndb
from google.cloud.datastore_v1.types import datastore as datastore_types

from userlock.errors import ConfigurationError, LockIdError, NotUnique
from userlock.ndb.commits import Looked, Name, Pair, Steps, key_of, look_up, name_of
from userlock.ndb.context import current_attempt, in_transaction
from userlock.ndb.lock_ids import lock_id_for_put
from userlock.ndb.model import Model
from userlock.ndb.patches import is_complete, ndb_key_of, raw_key_of
from userlock.ndb.policies import WritePolicy

#: The kind of a row, and its properties in Datastore.
KIND = "UserLockClaim"
HOLDER, CONSTRAINT, VALUE, WRITE = "holder", "constraint", "value", "write"
#: The property of an entity that lists its rows.
LIST = "userlock_claims"

_Mutation: Any = datastore_types.Mutation


class ClaimRow(Model):
    """A value that one entity has alone. Written in the commit of the entity.

    `constraint`: with the kind; `value`: in words; `write`: a number of the entity's put.
    """

    _write_policy = WritePolicy.IN_TRANSACTION

    holder = ndb.KeyProperty(HOLDER, indexed=False)
    constraint = ndb.StringProperty(CONSTRAINT)
    value = ndb.TextProperty(VALUE)
    write = ndb.IntegerProperty(WRITE, indexed=False)

    @property
    def holder_key(self) -> Any:
        """Return the holder; None if another program's row names none.

        ndb makes a key of any value of a `KeyProperty`.
        """
        with contextlib.suppress(AttributeError):
            self.holder.flat()
            return self.holder
        return None

    @classmethod
    def _get_kind(cls) -> str:
        return KIND


class Claim(NamedTuple):
    """A value that an entity is to have alone: the row that stands for it."""

    key: Any  # of the row: an `ndb.Key`; in commits the (raw) one
    constraint: str
    value: str  # for people


class Claims(NamedTuple):
    """The claims that an entity has after a write, and those that it had at the read."""

    wanted: Sequence[Claim] = ()
    known: Sequence[Any] = ()  # (raw) keys, as far as they are known
    nonce: int = 0  # a number in the new rows, by which the write is recognised


class Taken(NamedTuple):
    """Another entity has one of the values. An outcome of a write."""

    claim: Claim
    holder: Any  # its (raw) key

    def error(self, **facts: Any) -> NotUnique:
        _, constraint, value = self.claim
        return NotUnique(
            **facts, constraint=constraint, value=value, holder=ndb_key_of(self.holder)
        )


# --- models and entities ------------------------------------------------------------------------


def prepare(cls: Any, declared: Any, root: Any, of_root: Any) -> tuple[Any, ...]:
    """Return the constraints of a class that is being defined, which gets the list of its claims.

    `root`: the class that its keys name: for a `PolyModel`, the root of the hierarchy.
    """
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
        setattr(cls, LIST, ndb.KeyProperty(repeated=True, indexed=False))
    return tuple(declared)


def listed(entity: Any) -> tuple[Any, ...] | None:
    """Return the keys of the claims that an entity lists; None if they are not known."""
    with contextlib.suppress(Exception):  # a projection; or malformed: they are looked up
        return tuple(dict.fromkeys(getattr(entity, LIST)))  # a malformed one raises here
    return None


def change(
    entity: Any, claims: Sequence[Claim], known: Sequence[Any] | None
) -> tuple[Claims | None, tuple[Any, ...]]:
    """List the claims in an entity that is about to be put.

    Returns the claims, unless those in Datastore are the same for certain; and the keys of all.
    """
    keys = tuple(claim.key for claim in claims)
    setattr(entity, LIST, list(keys))
    if known is not None and set(known) == set(keys):
        return None, keys
    rows = [each._replace(key=raw_key_of(each.key)) for each in claims]
    return Claims(rows, list(map(raw_key_of, known or ())), secrets.randbits(62)), keys


def claims_of(entity: Any) -> list[Claim]:
    """Return the claims of an entity by its present values. Calls functions of the application.

    LockIdError: a constraint per owner, and the entity does not say which lock guards it.
    """
    lock_id = None
    if entity._userlock_rule is not None:
        with contextlib.suppress(LockIdError):
            lock_id = lock_id_for_put(entity)
    claims = (each.claim_of(entity, lock_id) for each in entity._userlock_constraints)
    return [claim for claim in claims if claim is not None]


def claims_of_attempt() -> dict[Any, tuple[Any, ...]]:
    """Return the entities that the running transaction has put or deleted so far.

    By key (while that has no id, by another unique value), each with the keys of the claims that
    it will have. Empty outside of transactions.
    """
    if not in_transaction():
        return {}
    tickets = current_attempt().tickets
    return {each.key if is_complete(each.key) else each.number: each.claimed for each in tickets}


# --- commits ------------------------------------------------------------------------------------


def expected_keys(pairs: Iterable[Pair]) -> Iterator[Any]:
    """Give the (raw) keys that `settle` needs, as far as they are known before the look-up."""
    for _, mutation, write, _ in pairs:
        if write.rows is not None:
            yield key_of(mutation)
            yield from write.rows.known
            yield from (claim.key for claim in write.rows.wanted)


def look_further(request: Any, pairs: Sequence[Pair], looked: Looked) -> Steps:
    """Look the keys up that only the first look-up tells: other rows, and holders of rows."""
    seen = looked.found.keys() | looked.missing.keys()
    keys: list[Any] = []
    for _, mutation, write, _ in pairs:
        keys += listed_by(looked, name_of(key_of(mutation))).values()
        for claim in write.rows.wanted:
            holder = _holder_of(looked, name_of(claim.key))
            if holder is not None:
                keys.append(holder)
    keys = [key for key in keys if name_of(key) not in seen]
    if keys:
        more: Looked = yield from look_up(request, keys, looked.transaction)
        looked.found.update(more.found)
        looked.missing.update(more.missing)


def listed_by(looked: Looked, name: Name) -> dict[Name, Any]:
    """Return the (raw) keys of the rows that a stored entity lists, by name."""
    result = looked.found.get(name)
    if result is None or LIST not in result.entity.properties:
        return {}
    values = result.entity.properties[LIST].array_value.values
    keys = [each.key_value for each in values if each.HasField("key_value")]
    return {name_of(key): key for key in keys}


def _holder_of(looked: Looked, row: Name) -> Any:
    """Return the (raw) key in a stored row; None if there is no row, or it is malformed."""
    result = looked.found.get(row)
    if result is None or HOLDER not in result.entity.properties:
        return None
    value = result.entity.properties[HOLDER]
    return value.key_value if value.HasField("key_value") and value.key_value.path else None


def find_taken(pairs: Sequence[Pair], looked: Looked) -> dict[int, Taken]:
    """Return the mutations that want a value of another entity, by position.

    Of two that want the same one, the first gets it. A value that another mutation gives up may be
    had in the same commit, so that two entities can exchange theirs.
    """
    taken: dict[int, Taken] = {}
    # Again without those that are refused: they do not give anything up.
    while found := _taken_once([each for each in pairs if each.position not in taken], looked):
        taken |= found
    return taken


def _taken_once(pairs: Sequence[Pair], looked: Looked) -> dict[int, Taken]:
    wants = {name_of(key_of(pair.mutation)): _wanted_by(pair) for pair in pairs}
    first: dict[Name, Any] = {}
    taken: dict[int, Taken] = {}
    for pair in pairs:
        mine = key_of(pair.mutation)
        for name, claim in _wanted_by(pair).items():
            holder = first.get(name) or _holder_of(looked, name)
            if holder is None or name_of(holder) == name_of(mine):
                continue
            theirs = wants.get(name_of(holder))
            lists = listed_by(looked, name_of(holder)) if theirs is None else theirs
            if name in lists:
                taken[pair.position] = Taken(claim, holder)
                break
        else:
            first |= dict.fromkeys(_wanted_by(pair), mine)
    return taken


def _wanted_by(pair: Pair) -> dict[Name, Claim]:
    return {name_of(claim.key): claim for claim in pair.write.rows.wanted}


def changes(pairs: Sequence[Pair], looked: Looked) -> list[Any]:
    """Return the mutations of rows that belong to mutations of which none is refused."""
    changed: dict[Name, Any] = {}
    for pair in pairs:
        mine = key_of(pair.mutation)
        for name, claim in _wanted_by(pair).items():
            if not _has(looked, mine, name):
                changed[name] = _row(claim, mine, pair.write.rows.nonce)
    for pair in pairs:
        mine, wanted = key_of(pair.mutation), _wanted_by(pair)
        for name, key in listed_by(looked, name_of(mine)).items():
            if name not in wanted and name not in changed and _has(looked, mine, name):
                changed[name] = gone = _Mutation.pb(_Mutation())
                gone.delete.CopyFrom(key)
    return list(changed.values())


def _has(looked: Looked, entity: Any, row: Name) -> bool:
    holder = _holder_of(looked, row)
    return holder is not None and name_of(holder) == name_of(entity)


def _row(claim: Claim, holder: Any, nonce: int) -> Any:
    mutation = _Mutation.pb(_Mutation())
    entity = mutation.upsert
    entity.key.CopyFrom(claim.key)
    entity.properties[HOLDER].key_value.CopyFrom(holder)
    entity.properties[CONSTRAINT].string_value = claim.constraint
    entity.properties[VALUE].string_value = claim.value
    entity.properties[WRITE].integer_value = nonce
    for name in (HOLDER, VALUE, WRITE):
        entity.properties[name].exclude_from_indexes = True
    return mutation


def has_row_of(looked: Looked, pair: Pair) -> bool:
    """Return whether this very write has given its entity a row."""
    nonce = pair.write.rows.nonce
    names = (name for name in _wanted_by(pair) if _has(looked, key_of(pair.mutation), name))
    rows = (looked.found[name].entity.properties for name in names)
    return any(WRITE in row and row[WRITE].integer_value == nonce for row in rows)
