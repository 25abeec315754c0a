"""Copies: the next free name of "Summer", "Summer (Copy 1)", "Summer (Copy 2)", …

The search assumes that the taken numbers have no gaps. It looks at 1, 4, 16, 64 in one look-up, and
then closes in between the last number that is taken and the first one that is free. With gaps it
finds a free number, which may not be the first.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import Any

from google.cloud import ndb

from userlock.constraints.claims import claims_of, claims_of_attempt
from userlock.errors import ConfigurationError, NotUnique
from userlock.ndb.model import Model

_PATTERN = "{name} (Copy {n})"
#: The length of an indexed text in Datastore, in bytes.
_MOST_BYTES = 1500
#: The numbers of the first look-up; 0 is the name as it is. Each later one multiplies by four.
_FIRST_PROBES = (0, 1, 4, 16, 64)
#: The probes of a later look-up.
_PROBES = 3
#: The highest number.
_MOST_NUMBER = 10**9
#: After so many lost races, the next number is at most 2 to the power of this further.
_MOST_SPREAD = 10
#: How often a race for a name may be lost.
_MOST_LOSSES = 50


def put_as_copy(
    entity: Any, name: str, *, pattern: str = _PATTERN, max_length: int = _MOST_BYTES
) -> str:
    """Put an entity under its name if that is free, and otherwise under the next free one.

    "Summer" becomes "Summer (Copy 1)", and so does "Summer (Copy 7)" if it is taken: suffixes are
    not stacked. Needs O(log N) look-ups for the Nth copy. Of any number of callers at once each
    gets another name, with or without the lock; the numbers may have gaps then. When another caller
    is faster it tries again; in a transaction the commit is refused as contention, and ndb runs it
    again.

    Args:
        entity: an entity of a model with `_unique`. If it has no claim (it is archived), it is put
            as it is.
        name: the property with the name, a text.
        pattern: the copies' names. Contains {name} and {n}.
        max_length: the length of names in characters; the name before the suffix is cut. Also
            cut to 1500 bytes, Datastore's limit.

    Returns:
        The name that it has got.

    Raises:
        NotUnique: another unique value is taken; or 50 races were lost.
        ValueError: the pattern or the length is of no use, or the name longer than that. Or a fold
            makes the copies equal.
        ConfigurationError: the entity's model has no `_unique`, or none that the name counts for.
        WriteViolation, StaleWriteError: as `put`. The entity keeps its name then, but for an error
            of the commit of a transaction: so read the entity in the transaction.
    """
    if not isinstance(entity, Model) or not type(entity)._userlock_constraints:
        raise ConfigurationError(f"a copy is an entity of a model with _unique, not {entity!r:.80}")
    _check_name(type(entity), name)
    names = _Names(getattr(entity, name), pattern, max_length)
    candidates = _Candidates(entity, name, names)
    number = first_free(candidates.taken) if candidates.constraints() else 0
    for losses in range(1, _MOST_LOSSES + 1):
        try:
            setattr(entity, name, names.of(number))
            entity.put()
            break
        except BaseException as error:
            setattr(entity, name, names.original)
            lost = isinstance(error, NotUnique) and error.constraint in candidates.constraints()
            if not lost or losses == _MOST_LOSSES:
                raise
            # Many at once spread, instead of meeting again at the next number.
            number += random.randint(1, 2 ** min(losses, _MOST_SPREAD))
    put: str = getattr(entity, name)  # a validator may have changed it
    return put


def _check_name(cls: Any, name: Any) -> None:
    found = getattr(cls, name, None) if isinstance(name, str) else None
    if not isinstance(found, ndb.Property):
        raise ConfigurationError(
            f"a copy needs the name of a property of {cls.__name__}, such as 'title', not "
            f"{name!r:.80}"
        )
    counting = {each for constraint in cls._userlock_constraints for each in constraint.properties}
    computed = any(isinstance(getattr(cls, each), ndb.ComputedProperty) for each in counting)
    if name not in counting and not computed:
        raise ConfigurationError(
            f"{cls.__name__}._unique does not count {name!r}, so copies would all have one name. "
            f"To fix it: name one of {', '.join(sorted(counting))}"
        )


class _Names:
    """The names of copies, by number; 0 is the name as it is."""

    def __init__(self, original: Any, pattern: str, max_length: int) -> None:
        if not isinstance(original, str) or not original:
            raise ValueError(f"a copy needs a name that is a text, not {original!r:.80}")
        if not isinstance(max_length, int) or not isinstance(pattern, str):
            raise ValueError(
                f"a pattern is a text and a length a number, not {pattern!r:.80} and "
                f"{max_length!r:.80}"
            )
        if pattern.count("{name}") != 1 or pattern.count("{n}") != 1:
            raise ValueError(f"pattern contains {{name}} and {{n}} once each, not {pattern!r:.80}")
        if len(original) > max_length:
            raise ValueError(
                f"the name has {len(original)} characters, and max_length is {max_length}"
            )
        self.original = original
        self._pattern = pattern
        self._max_length = max_length
        form = re.escape(pattern).replace(r"\{name\}", "(.+)").replace(r"\{n\}", r"\d+")
        self._name = original
        while (match := re.fullmatch(form, self._name, re.DOTALL)) is not None:
            self._name = match[1]
        if not self._fits(self._written("x", _MOST_NUMBER)):
            raise ValueError(f"max_length={max_length} leaves no room for a name in {pattern!r}")

    def of(self, number: int) -> str:
        if number == 0:
            return self.original
        name = self._name
        while not self._fits(self._written(name, number)):
            name = name[:-1].rstrip()
        return self._written(name, number)

    def _written(self, name: str, number: int) -> str:
        before, _, after = self._pattern.partition("{name}")
        return before.replace("{n}", str(number)) + name + after.replace("{n}", str(number))

    def _fits(self, text: str) -> bool:
        return len(text) <= self._max_length and len(text.encode()) <= _MOST_BYTES


class _Candidates:
    """The claims that an entity would have under another name."""

    def __init__(self, entity: Any, name: str, names: _Names) -> None:
        self._entity = entity
        self._name = name
        self._names = names
        original, first, second = map(self._claims, range(3))
        #: Those that do not depend on the name, which may be that of a copy itself.
        self._fixed = original.keys() & first.keys() & second.keys()
        self._depending = {original[key] for key in original.keys() - self._fixed}
        named = {
            each.named(type(entity))
            for each in type(entity)._userlock_constraints
            if name in each.properties
        }
        both = first.keys() & second.keys()
        alike = {key for key in both if key not in self._fixed or first[key] in named}
        if alike:
            raise ValueError(
                f"{first[alike.pop()]} gives {names.of(1)!r:.80} and {names.of(2)!r:.80} the same "
                f"value. To fix it: choose a pattern or a fold that keeps them apart"
            )

    def constraints(self) -> set[str]:
        """Return the names of the constraints that depend on the name; none: it is not claimed."""
        return self._depending

    def taken(self, numbers: Iterable[int]) -> set[int]:
        """Return those numbers whose names are taken by others. One look-up."""
        keys = {number: self._claims(number).keys() - self._fixed for number in numbers}
        wanted = list(set().union(*keys.values()))
        rows = ndb.get_multi(wanted, use_cache=False, use_global_cache=False)
        # What this transaction has changed so far is not in Datastore yet.
        mine = self._entity.key
        changed = claims_of_attempt()
        changed.pop(mine, None)
        taken = set().union(*changed.values())
        taken |= {
            row.key
            for row in rows
            if row is not None and row.holder_key != mine and row.holder_key not in changed
        }
        return {number for number, wants in keys.items() if wants & taken}

    def _claims(self, number: int) -> dict[Any, str]:
        before = getattr(self._entity, self._name)
        setattr(self._entity, self._name, self._names.of(number))
        try:
            return {claim.key: claim.constraint for claim in claims_of(self._entity)}
        finally:
            setattr(self._entity, self._name, before)


def first_free(taken: Callable[[Iterable[int]], set[int]]) -> int:
    """Return a free number whose predecessor is taken; 0 if the plain name is free."""
    probes = list(_FIRST_PROBES)
    last_taken, free = -1, None
    while free is None or free - last_taken > 1:
        found = taken(probes)
        free = next((probe for probe in probes if probe not in found), free)
        before = [probe for probe in probes if free is None or probe < free]
        last_taken = max([last_taken, *before])
        if free is not None:
            span = free - last_taken
            parts = (span * part // (_PROBES + 1) for part in range(1, _PROBES + 1))
            probes = sorted({last_taken + part for part in parts if part})
        else:
            probes = [probes[-1] * 4**power for power in range(1, len(_FIRST_PROBES))]
            if probes[-1] > _MOST_NUMBER:
                raise ValueError(
                    f"no copy up to number {probes[0] // 4:,} is free: a fold may make many of "
                    f"them equal"
                )
    return free
