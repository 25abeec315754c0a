"""The watched kinds: those of userlock's models."""

from __future__ import annotations

import weakref
from typing import Any

#: By kind, the latest last; none without one. Not a `WeakValueDictionary`: it takes five times as
#: long to look something up.
_classes: dict[str, list[weakref.ref[Any]]] = {}


def watch(kind: str, cls: Any) -> None:
    """Watch a kind for as long as the class is around. The latest class of a kind counts."""

    if watched_class(kind) is cls:
        return

    def forget(gone: weakref.ref[Any]) -> None:
        left = [each for each in _classes[kind] if each is not gone]
        if left:
            _classes[kind] = left
        else:
            del _classes[kind]

    _classes[kind] = [*_classes.get(kind, ()), weakref.ref(cls, forget)]


def watched_class(kind: str) -> Any:
    """Return the class of a kind, or None if it is not watched."""
    found = _classes.get(kind)
    return None if found is None else found[-1]()


def is_watched(kind: str) -> bool:
    """Return whether a kind is watched."""
    return kind in _classes
