"""Finds the entities below a root, each after all that is below it. In bounded memory.

Below an entity are those under its key path, of any kind, and those that name
it in a declared property. A pass goes on by the order of keys, so that an index
that lags behind cannot hold it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.ndb.patches import kind_of, path_of


class Step(NamedTuple):
    """One entity on the way from the root to an entity.

    Attributes:
        key: its key.
        attribute: its property that names the parent; None if it is under a key path.
        parent: the key of that parent.
    """

    key: Any
    attribute: str | None = None
    parent: Any = None

    def is_left(self, entity: Any) -> bool:
        """Return whether the entity now names another parent. `entity`: None if it is gone."""
        if self.attribute is None or entity is None:
            return False
        return bool(getattr(entity, self.attribute) != self.parent)


class Found(NamedTuple):
    """An entity that is to be deleted.

    Attributes:
        key: its key.
        way: from below the root to the entity itself. While it is there, those before it have to
            stay: nobody would find it without them.
    """

    key: Any
    way: tuple[Step, ...]


class Walk:
    """A way through everything below a root.

    Args:
        children: by the kind of the parent: the child models, and the names of their properties.
        page: how many keys are read at once.
    """

    def __init__(self, children: Mapping[str, list[tuple[Any, str]]], page: int) -> None:
        self._children = children
        self._page = page

    def below(self, root: Any) -> Iterator[Found]:
        """Give what is below a root, bottom-up. What was given may be deleted meanwhile."""
        yield from self._below(root, (), {root})

    def _below(self, key: Any, way: tuple[Step, ...], met: set[Any]) -> Iterator[Found]:
        """Give what is below an entity. `met`: those on the way, which may name each other."""
        #: Entities whose descendants are being read: these follow them in the order of keys.
        above: list[Any] = []
        for each in self._keys(ndb.Query(ancestor=key)):
            if each in met:
                continue
            while above and not _is_below(each, above[-1]):
                yield from self._last(above, way, met)
            above.append(each)
        while above:
            yield from self._last(above, way, met)
        yield from self._naming(key, way, met)

    def _last(self, above: list[Any], way: tuple[Step, ...], met: set[Any]) -> Iterator[Found]:
        """Give the last one, after those that name it."""
        key = above[-1]
        way = (*way, *map(Step, above))
        above.pop()
        yield from self._naming(key, way, met | {key})
        yield Found(key, way)

    def _naming(self, key: Any, way: tuple[Step, ...], met: set[Any]) -> Iterator[Found]:
        """Give the entities that name one in a property, each after all that is below it."""
        for model, name in self._children.get(kind_of(key), ()):
            query = model.query(getattr(model, name) == key, namespace=key.namespace() or "")
            for child in self._keys(query):
                if child not in met:
                    further = (*way, Step(child, name, key))
                    yield from self._below(child, further, met | {child})
                    yield Found(child, further)

    def _keys(self, query: Any) -> Iterator[Any]:
        last = None
        while True:
            page = query if last is None else query.filter(ndb.FilterNode("__key__", ">", last))
            keys = page.fetch(self._page, keys_only=True)
            yield from keys
            if len(keys) < self._page:
                return
            last = keys[-1]


def _is_below(key: Any, other: Any) -> bool:
    """Return whether a key is below another one, by their paths."""
    path, above = path_of(key), path_of(other)
    return len(path) > len(above) and path[: len(above)] == above
