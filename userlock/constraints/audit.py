"""Compares entities and claims, and repairs them: for older data, and what other programs wrote.

Each entity and each row is looked at outside of a transaction first. What seems wrong is looked at
again, and repaired, in a transaction of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.constraints.claims import LIST, ClaimRow, claims_of
from userlock.errors import ConfigurationError, LockTimeout, NotUnique
from userlock.lock.api import global_lock
from userlock.lock.lease import Priority
from userlock.ndb.client import DATASTORE_ERRORS
from userlock.ndb.lock_ids import lock_id_of
from userlock.ndb.model import Model
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import forget_claims
from userlock.ndb.transactions import is_conflict
from userlock.words import legible, text_of

_BATCH = 100
#: The values of unclaimed entities that are kept, to find those that two of them have.
_MOST_REMEMBERED = 200_000
_MOST_ERROR = 300

UNCLAIMED = "unclaimed"  # the entity has a value without a row of its own
OUTDATED = "outdated"  # it lists a value that it no longer has
DUPLICATE = "duplicate"  # another entity has its value
VOID = "void"  # the row's entity is gone, or has another value
FAILED = "failed"  # the check or the repair raised an error


class Problem(NamedTuple):
    """One entity or row that is not as it should be."""

    what: str  # `UNCLAIMED`, `OUTDATED`, `DUPLICATE`, `VOID` or `FAILED`
    key: Any  # of the entity; of a void row, its own
    constraint: str = ""  # with the kind
    value: str = ""  # in words
    holder: Any = None  # the key of the other entity, of a duplicate
    error: str = ""
    repaired: bool = False


class Audit:
    """A comparison of the entities of some models with their claims, in one namespace.

    In an ndb context. Other requests may go on meanwhile. Run again, it finds what is left.

    A repair claims free values, and removes void rows. Of entities with one value the first that is
    met claims it; the others are reported, and no entity is given another value. A repaired entity
    is put again, with its hooks, under its lock. `wait_timeout`: the longest wait for that, in
    seconds. `stopped`: whether to end, asked between batches.

    Attributes:
        entities, rows: how many were looked at.
        all_remembered: whether values that several unclaimed entities have were all found. A
            repair finds them in any case.
    """

    def __init__(
        self,
        *,
        repair: bool = False,
        wait_timeout: float = 5.0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.entities = 0
        self.rows = 0
        self.all_remembered = True
        self.interrupted = False
        self._repair = repair
        self._wait_timeout = wait_timeout
        self._stopped = stopped
        self._remembered: dict[Any, Any] = {}
        #: Locks that were not free in time: the next entity of that user is not waited for.
        self._busy: set[str] = set()

    def run(self, model: Any) -> Iterator[Problem]:
        """Give the problems of a model's entities, and of its rows."""
        for keys in self._batches(model.query()):
            self.entities += len(keys)
            entities = [entity for entity in _get(keys) if entity is not None]
            for entity, is_in_order in zip(entities, _are_in_order(entities), strict=True):
                if not is_in_order:
                    yield from self._of_entity(entity)
        kind = model._get_kind()
        rows = ClaimRow.query(ClaimRow.constraint >= f"{kind}.", ClaimRow.constraint < f"{kind}/")
        for keys in self._batches(rows.order(ClaimRow.constraint, ClaimRow.key)):
            yield from self._of_rows(keys)

    def _batches(self, query: Any) -> Iterator[list[Any]]:
        cursor, more = None, True
        while more:
            if self._stopped():
                self.interrupted = True
                return
            keys, cursor, more = query.fetch_page(_BATCH, start_cursor=cursor, keys_only=True)
            if keys:
                yield keys

    def _of_entity(self, entity: Any) -> Iterator[Problem]:
        try:
            repaired = self._look_again(entity)
        except NotUnique as error:
            yield Problem(DUPLICATE, entity.key, error.constraint, error.value, error.holder)
        except DATASTORE_ERRORS as error:
            if not is_conflict(error):
                raise
            yield Problem(FAILED, entity.key, error=f"contention: {error}")
        except Exception as error:  # of this entity: the others are still looked at
            text = legible(text_of(error).partition("\n")[0], _MOST_ERROR)
            yield Problem(FAILED, entity.key, error=text)
        else:
            if repaired is not None:
                yield repaired

    def _look_again(self, entity: Any) -> Problem | None:
        """Look at an entity in a transaction; put it again for a repair."""

        def look() -> Problem | None:
            found = entity.key.get()
            if found is None or _are_in_order([found]) == [True]:
                return None
            problem = _first_problem(found)
            if self._repair:
                forget_claims(found)
                found.put(unguarded=_reason(found))
                problem = problem._replace(repaired=True)
            return problem

        with self._locked(entity):
            problem: Problem | None = ndb.transaction(look)
        if problem is not None and not self._repair:
            other = self._other_with_its_value(entity)
            if other is not None:
                return problem._replace(what=DUPLICATE, holder=other)
        return problem

    @contextlib.contextmanager
    def _locked(self, entity: Any) -> Iterator[None]:
        """Hold the entity's lock for a repair, so that its holder's put is not refused."""
        if not self._repair or type(entity)._write_policy is not WritePolicy.USER_LOCK:
            yield
            return
        lock_id = lock_id_of(entity)
        wait = 0 if lock_id in self._busy else self._wait_timeout
        lock = global_lock(lock_id, wait_timeout=wait, priority=Priority.BATCH)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lock)
            except LockTimeout:
                self._busy.add(lock_id)
                raise
            yield

    def _other_with_its_value(self, entity: Any) -> Any:
        """Return the key of another unclaimed entity with one of its values; remember its own."""
        for claim in claims_of(entity):
            other = self._remembered.get(claim.key)
            if other is not None and other != entity.key:
                return other
            if len(self._remembered) < _MOST_REMEMBERED:
                self._remembered[claim.key] = entity.key
            else:
                self.all_remembered = False
        return None

    def _of_rows(self, keys: list[Any]) -> Iterator[Problem]:
        rows = [row for row in _get(keys) if row is not None]
        self.rows += len(rows)
        for row, is_void in zip(rows, _are_void(rows), strict=True):
            problem = self._look_again_at_row(row.key) if is_void else None
            if problem is not None:
                yield problem

    def _look_again_at_row(self, key: Any) -> Problem | None:
        def look() -> Problem | None:
            row = key.get()
            if row is None or _are_void([row]) != [True]:
                return None
            if self._repair:
                row.key.delete()
            return Problem(VOID, key, row.constraint, row.value or "", repaired=self._repair)

        problem: Problem | None = ndb.transaction(look)
        return problem


def _reason(entity: Any) -> str | None:
    if type(entity)._write_policy in (WritePolicy.USER_LOCK, WritePolicy.IN_TRANSACTION):
        return None
    return "its claims are repaired, in a transaction that has read it"


def _get(keys: Iterable[Any]) -> list[Any]:
    found: list[Any] = ndb.get_multi(keys, use_cache=False, use_global_cache=False)
    return found


def _are_in_order(entities: list[Any]) -> list[bool]:
    """Return for each entity whether it has its claims, and lists no others. One look-up.

    Errors count as disorder.
    """
    wanted: list[set[Any] | None] = []
    for entity in entities:
        try:
            wanted.append({claim.key for claim in claims_of(entity)})
        except Exception:
            wanted.append(None)
    asked = set().union(*(keys for keys in wanted if keys is not None))
    holders = {row.key: row.holder_key for row in _get(asked) if row is not None}
    return [
        keys is not None
        and keys == set(getattr(entity, LIST, ()))
        and all(holders.get(key) == entity.key for key in keys)
        for entity, keys in zip(entities, wanted, strict=True)
    ]


def _first_problem(entity: Any) -> Problem:
    """Return the first claim that an entity lacks; `NotUnique`: another entity has its value."""
    claims = claims_of(entity)
    rows = _get([claim.key for claim in claims])
    present = [row for row in rows if row is not None]
    void = {row.key for row, is_void in zip(present, _are_void(present), strict=True) if is_void}
    for claim, row in zip(claims, rows, strict=True):
        if row is not None and row.holder_key != entity.key and row.key not in void:
            raise NotUnique(
                key=entity.key,
                kind=type(entity)._get_kind(),
                constraint=claim.constraint,
                value=claim.value,
                holder=row.holder_key,
                put_at=None,
            )
    listed = getattr(entity, LIST, ())
    for claim, row in zip(claims, rows, strict=True):
        if row is None or row.holder_key != entity.key or claim.key not in listed:
            return Problem(UNCLAIMED, entity.key, claim.constraint, claim.value)
    return Problem(OUTDATED, entity.key)


def _are_void(rows: list[Any]) -> list[bool]:
    """Return for each row whether its holder is gone, or does not list it."""
    holders = _get({row.holder_key for row in rows if row.holder_key is not None})
    listed = {each.key: getattr(each, LIST, ()) for each in holders if each is not None}
    return [row.key not in listed.get(row.holder_key, ()) for row in rows]


def constrained_models(names: Iterable[str] = ()) -> list[Any]:
    """Return the imported models with `_unique`, or those of some kinds, by kind."""
    known: dict[str, Any] = {}
    for model in _below(Model):
        if model._userlock_constraints and model._write_policy is not WritePolicy.ABSTRACT:
            known.setdefault(model._get_kind(), model)
    unknown = sorted(set(names) - known.keys())
    if unknown:
        having = ", ".join(sorted(known)) or "none"
        raise ConfigurationError(
            f"no imported model of kind {unknown[0]!r:.80} has constraints. To fix it: name one of "
            f"those that have, {having}, or import its module"
        )
    return [known[kind] for kind in sorted(set(names) or known)]


def _below(cls: Any) -> Iterator[Any]:
    for each in cls.__subclasses__():
        yield each
        yield from _below(each)
