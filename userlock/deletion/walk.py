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


class Found(NamedTuple):
    """An entity that is to be deleted.

    Attributes:
        key: its key.
        through: the keys of the entities by whose keys it was found. While it is there, these
            have to stay: without them nobody would find it.
    """

    key: Any
    through: tuple[Any, ...]


class Walk:
    """A way through everything below a root.

    Args:
        children: by the kind of the parent: the child models, and the stored names of their
            properties.
        page: how many keys are read at once.
    """

    def __init__(self, children: Mapping[str, list[tuple[Any, str]]], page: int) -> None:
        self._children = children
        self._page = page

    def below(self, root: Any) -> Iterator[Found]:
        """Give what is below a root, bottom-up. What was given may be deleted meanwhile."""
        yield from self._below(root, (root,))

    def _below(self, key: Any, through: tuple[Any, ...]) -> Iterator[Found]:
        #: Entities whose descendants are being read: these follow them in the order of keys.
        above: list[Any] = []
        for each in self._keys(ndb.Query(ancestor=key)):
            if each == key or each in through:
                continue
            while above and not _is_below(each, above[-1]):
                yield from self._last(above, through)
            above.append(each)
        while above:
            yield from self._last(above, through)
        yield from self._naming(key, through)

    def _last(self, above: list[Any], through: tuple[Any, ...]) -> Iterator[Found]:
        """Give the last one, after what names it."""
        key = above.pop()
        through = (*through, *above)
        yield from self._naming(key, (*through, key))
        yield Found(key, through)

    def _naming(self, key: Any, through: tuple[Any, ...]) -> Iterator[Found]:
        """Give what names an entity in a property, and what is below that."""
        for model, name in self._children.get(kind_of(key), ()):
            named = ndb.FilterNode(name, "=", key)
            query = model.query(named, namespace=key.namespace() or "")
            for child in self._keys(query):
                if child not in through:  # they name each other: it comes later, or has come
                    yield from self._below(child, (*through, child))
                    yield Found(child, through)

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
