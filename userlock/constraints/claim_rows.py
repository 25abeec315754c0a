"""Claims at the commit: values that one entity at a time may have. Knows nothing of ndb.

Implements `userlock.ndb.commits.Further`.

    UserLockClaim Project.title=["…"]       holder: Project 7
    Project 7                               userlock_claims: its rows

A row and its holder's list change in one commit, so a row counts if its holder
lists it. One that its holder does not list, or whose holder is gone, is void: some
other program has written the entity. Whoever wants the value may have it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.datastore_v1.types import entity as entity_types

from userlock.errors import NotUnique
from userlock.ndb.commits import Looked, Name, Pair, Steps, key_of, look_up, name_of
from userlock.ndb.patches import ndb_key_of

#: The kind and the properties of a row.
KIND = "UserLockClaim"
HOLDER, CONSTRAINT, VALUE, WRITE = "holder", "constraint", "value", "write"
#: The property of an entity that lists its rows.
LIST = "userlock_claims"

_Mutation: Any = datastore_types.Mutation
_Entity: Any = entity_types.Entity


class Claim(NamedTuple):
    """A value that an entity is to have alone: the row that stands for it."""

    key: Any  # of the row: an `ndb.Key`; in commits the (raw) one
    constraint: str
    value: str  # for people


class Claims(NamedTuple):
    """The claims that an entity has after a write, and those that it had at the read."""

    wanted: Sequence[Claim] = ()
    known: Sequence[Any] = ()  # (raw) keys, as far as they are known


class Taken(NamedTuple):
    """Another entity has one of the values. An outcome of a write."""

    claim: Claim
    holder: Any  # its (raw) key

    def error(self, **facts: Any) -> NotUnique:
        """Return the error of the write."""
        return NotUnique(
            **facts,
            constraint=self.claim.constraint,
            value=self.claim.value,
            holder=ndb_key_of(self.holder),
        )


def new_nonce() -> int:
    """Return a number for the rows of one commit, by which it is recognised."""
    return secrets.randbits(62)


def expected_keys(pairs: Iterable[Pair]) -> Iterator[Any]:
    """Give the (raw) keys that `settle` needs, as far as they are known before the look-up."""
    for _, mutation, write, _ in pairs:
        if write.rows is not None:
            yield key_of(mutation)
            yield from write.rows.known
            yield from (claim.key for claim in write.rows.wanted)


def look_further(request: Any, pairs: Sequence[Pair], looked: Looked) -> Steps:
    """Look the keys up that only the first look-up tells: other rows, and holders of rows.

    Raises:
        GoogleAPIError: there is no answer.
    """
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


# --- who gets what --------------------------------------------------------------------------


def find_taken(pairs: Sequence[Pair], looked: Looked) -> dict[int, Taken]:
    """Return the mutations that want a value of another entity, by position.

    Of two that want the same one, the first gets it. A value that another mutation gives up may
    be had in the same commit, so that two entities can exchange theirs.
    """
    left = list(pairs)
    taken: dict[int, Taken] = {}
    while True:  # a mutation that is refused does not give anything up
        found = _taken_once(left, looked)
        if not found:
            return taken
        taken |= found
        left = [pair for pair in left if pair.position not in taken]


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


def changes(pairs: Sequence[Pair], looked: Looked, nonce: int) -> list[Any]:
    """Return the mutations of rows that belong to mutations of which none is refused."""
    changed: dict[Name, Any] = {}
    for pair in pairs:
        mine = key_of(pair.mutation)
        for name, claim in _wanted_by(pair).items():
            if not _has(looked, mine, name):
                changed[name] = _row(claim, mine, nonce)
    for pair in pairs:
        mine, wanted = key_of(pair.mutation), _wanted_by(pair)
        for name, key in listed_by(looked, name_of(mine)).items():
            if name not in wanted and name not in changed and _has(looked, mine, name):
                changed[name] = gone = _Mutation.pb(_Mutation())
                gone.delete.CopyFrom(key)
    return list(changed.values())


def _has(looked: Looked, entity: Any, row: Name) -> bool:
    """Return whether a stored row is that of an entity."""
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


def has_row_of(looked: Looked, pair: Pair, nonce: int) -> bool:
    """Return whether a commit with that nonce has given this mutation's entity a row."""
    mine = key_of(pair.mutation)
    for name in _wanted_by(pair):
        if _has(looked, mine, name):
            properties: Mapping[str, Any] = looked.found[name].entity.properties
            if WRITE in properties and properties[WRITE].integer_value == nonce:
                return True
    return False
