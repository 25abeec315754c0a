"""`Unique`: values that one entity at a time may have."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from google.cloud import ndb

from userlock.constraints import claims
from userlock.constraints.claims import Claim, ClaimRow
from userlock.errors import ConfigurationError, LockIdError
from userlock.ids import show_key
from userlock.ndb.client import is_foreign
from userlock.ndb.lock_ids import key_id, root_id
from userlock.ndb.owners import joined, owner_key
from userlock.ndb.patches import is_complete, path_of
from userlock.ndb.policies import WritePolicy
from userlock.ndb.transactions import is_plain

Fold = Callable[[Any], Any]
_SCOPES = ("owner", "parent", "all")
#: The longest name, in characters; and with the kind, as an indexed text, in bytes.
_MOST_NAME = 400
_MOST_BYTES = 1500
#: The properties whose values may be texts, and those whose values cannot be unique as they are.
_MAYBE_TEXT = (
    *(ndb.TextProperty, ndb.ComputedProperty, ndb.GenericProperty),
    *(ndb.JsonProperty, ndb.PickleProperty),
)
_NEVER_UNIQUE = (
    *(ndb.FloatProperty, ndb.GeoPtProperty),
    *(ndb.StructuredProperty, ndb.LocalStructuredProperty),
)
#: The length of a value that is shown.
_MOST_SHOWN = 300


class Unique:
    """A constraint: no two entities have the same values of these properties.

        class Project(userlock.UserModel):
            _lock_id_from_key = userlock.root_id
            _unique = [Unique("title", fold=caseless, unless="archived")]
            title = ndb.StringProperty(required=True)
            archived = ndb.BooleanProperty(default=False)

    A put whose values another entity has raises `NotUnique`, with nothing stored; in a transaction
    the commit raises it. The lock is not needed for that: each value is a row, a claim, which
    changes in the commit of its entity. Creations, renames, moves and deletes count, and
    `put_multi`. An entity with None in one of the properties has no claim.

    Costs: a put that changes no claim costs nothing more, if the entity was read or put before by
    the same object. Otherwise, outside of a transaction, it is a transaction of a look-up and a
    commit; in a transaction it is one look-up more. A delete is one look-up more than a put.

    Entities that were stored before the constraint claim their values at their next put; `userlock
    unique check` reports those that have not.

    Args:
        properties: the names of the properties. Computed ones may be among them: so a normalised
            value can be queried as well.
        fold: makes values equal that count as one, such as `caseless`: a function, called with
            texts only, or one for each property by name, called with any value. A value for which
            it returns None has no claim. After a change of it, run `userlock unique repair`.
        unless: the name of a property, or a function of the entity: while it is true, the entity
            has no claim.
        per: the scope. `owner`: the entities of one lock id. `parent`: those below one parent
            key. `all`: those of the kind, in one namespace.
        name: part of stored data; by default the properties' names.
    """

    #: For the model layer: see `userlock.ndb.commits.Write.further`.
    rows_of_model: ClassVar[Any] = claims

    def __init__(
        self,
        *properties: str,
        fold: Fold | Mapping[str, Fold] | None = None,
        unless: str | Callable[[Any], object] | None = None,
        per: Literal["owner", "parent", "all"] = "owner",
        name: str | None = None,
    ) -> None:
        if not properties or not all(isinstance(each, str) for each in properties):
            raise ConfigurationError(
                f'Unique() takes names of properties, as in Unique("title"), not {properties!r:.80}'
            )
        if len(set(properties)) < len(properties):
            raise ConfigurationError(f"Unique() names a property twice: {', '.join(properties)}")
        if per not in _SCOPES:
            raise ConfigurationError(f"per is 'owner', 'parent' or 'all', not {per!r:.80}")
        if fold is not None and not callable(fold):
            by_name = isinstance(fold, Mapping) and set(fold) <= set(properties)
            if not by_name or not all(callable(each) for each in fold.values()):
                raise ConfigurationError(
                    f"fold is a function, or one for each of {', '.join(properties)} by name, not "
                    f"{fold!r:.200}"
                )
        if unless is not None and not isinstance(unless, str) and not is_plain(unless):
            raise ConfigurationError(
                f"unless is the name of a property, or a plain function, not {unless!r:.80}"
            )
        self.properties = properties
        self.name = "+".join(properties) if name is None else name
        if (
            not isinstance(self.name, str)
            or not 1 <= len(self.name) <= _MOST_NAME
            or not self.name.isprintable()
            or "=" in self.name
            or "." in self.name  # separates it from the kind, which may contain some
        ):
            raise ConfigurationError(
                f"a constraint's name has 1 to {_MOST_NAME} printable characters, no '=' and no "
                f"'.', not {self.name!r:.80}"
            )
        self.per = per
        self._fold = fold
        self._unless = unless

    def __repr__(self) -> str:
        return f"Unique({', '.join(map(repr, self.properties))}, per={self.per!r})"

    def check(self, cls: Any) -> None:
        """Raise `ConfigurationError` if it does not fit a model that is being defined."""
        problem = self._problem_with(cls)
        if problem:
            raise ConfigurationError(f"{cls.__name__}: {self!r}{problem}")

    def _problem_with(self, cls: Any) -> str:
        named = [*self.properties, *([self._unless] if isinstance(self._unless, str) else [])]
        for name in named:
            found = getattr(cls, name, None)
            if not isinstance(found, ndb.Property):
                return f" names no property: {name!r}"
            if name not in self.properties:
                continue
            if found._repeated:
                return (
                    f": {name!r} is repeated, and a value of several values is not supported. To "
                    f"fix it: keep each in an entity of its own"
                )
            folded = isinstance(self._fold, Mapping) and name in self._fold
            if isinstance(found, _NEVER_UNIQUE) and not folded:
                return (
                    f": {name!r} is a {type(found).__name__}, whose values cannot be unique. To "
                    f"fix it: make them texts or numbers with fold={{{name!r}: function}}"
                )
        has_text = any(isinstance(getattr(cls, name), _MAYBE_TEXT) for name in self.properties)
        if callable(self._fold) and not has_text:
            return (
                f": fold is a function, which is for texts, and there is none among its "
                f"properties. To fix it: say fold={{{self.properties[0]!r}: function}}"
            )
        if len(self.named(cls).encode()) > _MOST_BYTES:
            return (
                f": its name and the kind have more than {_MOST_BYTES} bytes. To fix it: give a "
                f"shorter name="
            )
        if self.per == "owner" and cls._write_policy is not WritePolicy.USER_LOCK:
            return (
                f": its entities have no owner, as its policy is '{cls._write_policy}'. To fix it: "
                f"say per='parent' or per='all'"
            )
        if self.per == "owner" and cls._lock_id is None and cls._lock_id_from_key is key_id:
            return (
                ": each entity is its own owner, as its key's id is the lock id. To fix it: say "
                "per='all'"
            )
        return ""

    def claim_of(self, entity: Any, lock_id: str | None) -> Claim | None:
        """Return the claim of an entity by its present values; None if it has none.

        LockIdError: it is per owner, and the lock id is not known yet. TypeError: a value is of a
        type that is not supported.
        """
        if self._unless is not None:
            unless = self._unless
            if getattr(entity, unless) if isinstance(unless, str) else unless(entity):
                return None
        plain = [_as_stored(entity, name) for name in self.properties]
        folded = [self._folded(*each) for each in zip(self.properties, plain, strict=True)]
        if None in folded:
            return None
        values = [_encoded(each, self) for each in folded]
        pairs = zip(self.properties, plain, strict=True)
        return Claim(
            key=self._row_key(entity, lock_id, values),
            constraint=self.named(type(entity)),
            value=", ".join(f"{name} {value!r:.{_MOST_SHOWN}}" for name, value in pairs),
        )

    def named(self, cls: Any) -> str:
        return f"{cls._get_kind()}.{self.name}"

    def _folded(self, name: str, value: Any) -> Any:
        if value is None or self._fold is None:
            return value
        if callable(self._fold):
            return self._fold(value) if isinstance(value, str) else value
        fold = self._fold.get(name)
        return value if fold is None else fold(value)

    def _row_key(self, entity: Any, lock_id: str | None, values: list[Any]) -> Any:
        cls, key = type(entity), entity._key
        if key is None:
            key = ndb.Key(cls._get_kind(), None)  # as ndb makes it: in the context's namespace
        parent, namespace = key.parent(), key.namespace() or ""
        parts: list[Any] = [self.named(cls)]
        of_owner = self.per == "owner"
        if self.per == "parent":
            parts.append(None if parent is None else list(path_of(parent)))
            # If the parent tells the owner, their claims are in the owner's group.
            of_root = cls._lock_id is None and cls._lock_id_from_key is root_id
            of_owner = parent is not None and of_root and bool(lock_id)
        name = joined(*parts, *values)
        if of_owner:
            if lock_id is None:
                what = show_key(key) if is_complete(key) else f"a new {cls._get_kind()}"
                raise LockIdError(
                    f"{what} has no owner yet, and {self!r} is per owner. To fix it: set what "
                    f"names its lock before it is put"
                )
            return ndb.Key(ClaimRow, name, parent=owner_key(lock_id, namespace))
        return ndb.Key(ClaimRow, name, namespace=namespace)


def _as_stored(entity: Any, name: str) -> Any:
    """Return a value as it will be read: properties accept values that they store as others."""
    found = getattr(type(entity), name)
    if type(found) is not ndb.GenericProperty:  # which stores values as they are
        found._get_base_value(entity)  # converts it, as the put will
    return getattr(entity, name)


def _encoded(value: Any, constraint: Unique) -> Any:
    """Return a value for JSON, different for different values."""
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, ndb.Key) and is_complete(value):
        place = {"of": [value.project(), value.database() or ""]} if is_foreign(value) else {}
        return {"key": [value.namespace() or "", *path_of(value)], **place}
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)  # as in Datastore
        return {"datetime": value.isoformat()}
    if isinstance(value, datetime.date | datetime.time):
        return {type(value).__name__: value.isoformat()}
    raise TypeError(
        f"{constraint!r}: a value is a {type(value).__name__}, which cannot be unique. To fix it: "
        f"make it a text or a number with fold={{{constraint.properties[0]!r}: function}}"
    )
