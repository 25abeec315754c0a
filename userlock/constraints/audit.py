"""Compares entities and claims, and repairs them: for older data, and what other programs wrote.

Each entity and each row is looked at outside of a transaction first. What seems wrong is looked at
again, and repaired, in a transaction of its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.constraints.claims import Claim, ClaimRow, claims_of, listed
from userlock.errors import ConfigurationError, LockTimeout, NotUnique
from userlock.lock.api import global_lock
from userlock.lock.lease import Priority
from userlock.ndb.lock_ids import lock_id_of
from userlock.ndb.model import Model
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import forget_claims
from userlock.ndb.transactions import failure_text, is_outage
from userlock.words import legible

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
    """One value of an entity, or one row, that is not as it should be."""

    what: str  # `UNCLAIMED`, `OUTDATED`, `DUPLICATE`, `VOID` or `FAILED`
    key: Any  # of the entity; of a void row, its own
    constraint: str = ""  # with the kind
    value: str = ""  # in words
    holder: Any = None  # the key of the other entity, of a duplicate
    error: str = ""
    repaired: bool = False


#: A key whose entity or row seems wrong, and a second look at it.
_Suspect = tuple[Any, Callable[[], list[Problem]]]


class Audit:
    """A comparison of the entities of some models with their claims, in one namespace.

    In an ndb context. Other requests may go on meanwhile. Run again, it finds what is left.

    A repair claims free values, and removes void rows. Of entities with one value the first that is
    met claims it; the others are reported, claim their other values, and are given no new one. A
    repaired entity is put again, with its hooks, under its lock. `wait_timeout`: the longest wait
    for that, in seconds. `stopped`: whether to end, asked between batches.

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
            yield from self._found(keys, self._look)
        kind = model._get_kind()
        query = ClaimRow.query(ClaimRow.constraint >= f"{kind}.", ClaimRow.constraint < f"{kind}/")
        for keys in self._batches(query.order(ClaimRow.constraint, ClaimRow.key)):
            self.rows += len(keys)
            yield from self._found(keys, self._look_at_rows)

    def _look(self, keys: list[Any]) -> list[_Suspect]:
        entities = [entity for entity in _get(keys) if entity is not None]
        seen = zip(entities, _problems_of(entities), strict=True)
        return [
            (entity.key, functools.partial(self._look_again, entity))
            for entity, problems in seen
            if problems
        ]

    def _look_at_rows(self, keys: list[Any]) -> list[_Suspect]:
        void = _void([row for row in _get(keys) if row is not None])
        return [(key, functools.partial(self._look_again_at_row, key)) for key in void]

    def _found(
        self, keys: list[Any], look: Callable[[list[Any]], list[_Suspect]]
    ) -> Iterator[Problem]:
        """Look at some together, or each alone if one cannot be read; again at what seems wrong."""
        try:
            suspects = look(keys)
        except Exception as error:
            if is_outage(error):
                raise
            if len(keys) == 1:
                yield _failed(keys[0], error)
            else:
                for key in keys:
                    yield from self._found([key], look)
            return
        for key, again in suspects:
            yield from self._tried(key, again)

    def _batches(self, query: Any) -> Iterator[list[Any]]:
        cursor, more = None, True
        while more:
            if self._stopped():
                self.interrupted = True
                return
            keys, cursor, more = query.fetch_page(_BATCH, start_cursor=cursor, keys_only=True)
            if keys:
                yield keys

    def _tried(self, key: Any, look: Callable[[], list[Problem]]) -> list[Problem]:
        try:
            return look()
        except NotUnique as error:  # another one has it since the look
            return [Problem(DUPLICATE, key, error.constraint, error.value, error.holder)]
        except Exception as error:  # of this one: the others are still looked at
            if is_outage(error):
                raise
            return [_failed(key, error)]

    def _look_again(self, entity: Any) -> list[Problem]:
        """Look at an entity in a transaction; put it again for a repair, with what is free."""

        def look() -> list[Problem]:
            found = entity.key.get(use_cache=False)
            problems = [] if found is None else _problems_of([found])[0]
            if not self._repair or all(each.what == DUPLICATE for each in problems):
                return problems
            taken = {each.constraint for each in problems if each.what == DUPLICATE}
            unique = found._userlock_constraints
            found._userlock_constraints = [
                each for each in unique if each.named(type(found)) not in taken
            ]
            forget_claims(found)
            found.put(unguarded=_reason(found), use_cache=False)
            return [each._replace(repaired=each.what != DUPLICATE) for each in problems]

        with self._locked(entity):
            problems: list[Problem] = ndb.transaction(look, read_only=not self._repair)
        return problems if self._repair else self._compared(entity, problems)

    @contextlib.contextmanager
    def _locked(self, entity: Any) -> Iterator[None]:
        """Hold the entity's lock for a repair, so that its holder's put is not refused."""
        if not self._repair or type(entity)._write_policy is not WritePolicy.USER_LOCK:
            yield
            return
        lock_id = lock_id_of(entity)
        wait = 0 if lock_id in self._busy else self._wait_timeout
        try:
            with global_lock(lock_id, wait_timeout=wait, priority=Priority.BATCH):
                yield
        except LockTimeout:
            self._busy.add(lock_id)
            raise

    def _compared(self, entity: Any, problems: list[Problem]) -> list[Problem]:
        """Return the problems, with the values that other unclaimed entities have as duplicates."""
        rows = {claim.constraint: claim.key for claim in claims_of(entity)}
        compared = []
        for problem in problems:
            other = None
            if problem.what == UNCLAIMED and problem.constraint in rows:
                other = self._first_with(rows[problem.constraint], entity.key)
            new = other in (None, entity.key)
            compared.append(problem if new else problem._replace(what=DUPLICATE, holder=other))
        return compared

    def _first_with(self, row: Any, key: Any) -> Any:
        """Return the key of the first entity with a value; remember that of a new one."""
        if row not in self._remembered and len(self._remembered) >= _MOST_REMEMBERED:
            self.all_remembered = False
            return None
        return self._remembered.setdefault(row, key)

    def _look_again_at_row(self, key: Any) -> list[Problem]:
        def look() -> list[Problem]:
            row = key.get(use_cache=False)
            if row is None or not _void([row]):
                return []
            if self._repair:
                row.key.delete(use_cache=False)
            return [Problem(VOID, key, row.constraint, row.value or "", repaired=self._repair)]

        problems: list[Problem] = ndb.transaction(look, read_only=not self._repair)
        return problems


def _reason(entity: Any) -> str | None:
    if type(entity)._write_policy in (WritePolicy.USER_LOCK, WritePolicy.IN_TRANSACTION):
        return None
    return "its claims are repaired, in a transaction that has read it"


def _get(keys: Iterable[Any]) -> list[Any]:
    found: list[Any] = ndb.get_multi(keys, use_cache=False, use_global_cache=False)
    return found


def _failed(key: Any, error: Exception) -> Problem:
    return Problem(FAILED, key, error=legible(failure_text(error).partition("\n")[0], _MOST_ERROR))


def _problems_of(entities: list[Any]) -> list[list[Problem]]:
    """Return the problems of each entity. One look-up, and one more if others have a value."""
    claims = {entity.key: claims_of(entity) for entity in entities}
    rows = _get({claim.key for some in claims.values() for claim in some})
    rows = [row for row in rows if row is not None]
    void = _void(rows, entities)
    holders = {row.key: row.holder_key for row in rows if row.key not in void}
    return [_problems_with(entity, claims[entity.key], holders) for entity in entities]


def _problems_with(entity: Any, claims: list[Claim], holders: Mapping[Any, Any]) -> list[Problem]:
    """Return the problems of an entity. `holders`: of the rows that are not void, by key."""
    has = set(listed(entity) or ())
    problems = []
    for claim in claims:
        holder = holders.get(claim.key)
        if holder not in (None, entity.key):
            problems.append(Problem(DUPLICATE, entity.key, claim.constraint, claim.value, holder))
        elif holder is None or claim.key not in has:
            problems.append(Problem(UNCLAIMED, entity.key, claim.constraint, claim.value))
    outdated = has - {claim.key for claim in claims}
    if outdated and not any(each.what == UNCLAIMED for each in problems):
        problems.append(Problem(OUTDATED, entity.key))
    return problems


def _void(rows: list[Any], known: Iterable[Any] = ()) -> list[Any]:
    """Return the keys of the rows whose holder is gone, or does not list them.

    `known`: entities that need not be looked up.
    """
    unknown = {row.holder_key for row in rows} - {each.key for each in known} - {None}
    holders = [*known, *_get(unknown)]
    known_lists = {each.key: listed(each) or () for each in holders if each is not None}
    return [row.key for row in rows if row.key not in known_lists.get(row.holder_key, ())]


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
