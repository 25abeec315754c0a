"""Finds the entities below a root, each after all that is below it. In bounded memory.

Below an entity are those under its key path, of any kind, and those that name it in a declared
property. A pass goes on by the order of keys, so that an index that lags behind cannot hold it.
Many queries may come before the first entity that can be deleted, so each has a checkpoint.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.ndb.patches import kind_of, path_of


class Step(NamedTuple):
    """One entity on the way from the root to an entity."""

    key: Any
    attribute: str | None = None  # its property that names the parent; None: it is under a key path
    parent: Any = None  # the key of that parent

    def is_left(self, entity: Any) -> bool:
        """Return whether the entity now names another parent. `entity`: None if it is gone."""
        if self.attribute is None or entity is None:
            return False
        return bool(getattr(entity, self.attribute) != self.parent)


class Found(NamedTuple):
    """An entity that is to be deleted.

    `way`: from below the root to the entity itself. While it is there, those before it have to
    stay: nobody would find it without them.
    """

    key: Any
    way: tuple[Step, ...]


class _Branch(NamedTuple):
    """An entity on the way: what is below it, and at last the entity itself."""

    key: Any
    rest: Iterator[Any]


@dataclasses.dataclass
class Walk:
    """A way through everything below a root. The checkpoint may let others change what is below."""

    children: Mapping[str, list[tuple[Any, str]]]
    page: int
    checkpoint: Callable[[], object]

    def below(self, root: Any) -> Iterator[Found]:
        """Give what is below a root, bottom-up. What was given may be deleted meanwhile."""
        #: A stack of our own: entities may name each other in a chain of any length.
        stack = [self._below(root, ())]
        #: The entities on the way, which may name each other in a ring.
        met = [root]
        while stack:
            each = next(stack[-1], None)
            if isinstance(each, Found):
                yield each
            elif each is None:
                stack.pop()
                met.pop()
            elif each.key not in met:
                stack.append(each.rest)
                met.append(each.key)

    def queries_below(self, found: Found) -> Iterator[Any]:
        """Give the queries for what no later pass would find without this entity."""
        if found.way[-1].attribute is not None:
            yield ndb.Query(ancestor=found.key)
        for query, _ in self._queries_naming(found.key):
            yield query

    def _queries_naming(self, key: Any) -> Iterator[tuple[Any, str]]:
        """Give the queries for the entities that name one, each with their property's name."""
        for model, name in self.children.get(kind_of(key), ()):
            yield model.query(getattr(model, name) == key, namespace=key.namespace() or ""), name

    def _below(self, key: Any, way: tuple[Step, ...]) -> Iterator[Found | _Branch]:
        """Give what is below an entity: branches, and at their ends entities."""
        #: Entities whose descendants are being read: these follow them in the order of keys.
        above: list[Any] = []
        for each in self._keys(ndb.Query(ancestor=key)):
            if each == key:
                continue
            while above and not _is_below(each, above[-1]):
                yield self._last(above, way)
            above.append(each)
        while above:
            yield self._last(above, way)
        yield from self._naming(key, way)

    def _last(self, above: list[Any], way: tuple[Step, ...]) -> _Branch:
        """Take the last one, with what names it."""
        way = (*way, *map(Step, above))
        key = above.pop()
        return _Branch(key, itertools.chain(self._naming(key, way), [Found(key, way)]))

    def _naming(self, key: Any, way: tuple[Step, ...]) -> Iterator[_Branch]:
        """Give the entities that name one in a property, with what is below them."""
        for query, name in self._queries_naming(key):
            for child in self._keys(query):
                longer = (*way, Step(child, name, key))
                below = self._below(child, longer)
                yield _Branch(child, itertools.chain(below, [Found(child, longer)]))

    def _keys(self, query: Any) -> Iterator[Any]:
        last = None
        while True:
            self.checkpoint()
            page = query if last is None else query.filter(ndb.FilterNode("__key__", ">", last))
            keys = page.fetch(self.page, keys_only=True)
            yield from keys
            if len(keys) < self.page:
                return
            last = keys[-1]


def _is_below(key: Any, other: Any) -> bool:
    """Return whether a key is below another one, by their paths."""
    path, above = path_of(key), path_of(other)
    return len(path) > len(above) and path[: len(above)] == above
