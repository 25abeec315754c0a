"""Which kinds are watched: those that a model of userlock's has claimed."""

from __future__ import annotations

import weakref
from typing import Any

#: By kind. Not a `WeakValueDictionary`, which takes five times as long to look something up.
_classes: dict[str, weakref.ref[Any]] = {}


def watch(kind: str, cls: Any) -> None:
    """Watch a kind from now on. The latest class of a kind counts, as in ndb."""

    def forget(gone: weakref.ref[Any]) -> None:
        if _classes.get(kind) is gone:
            del _classes[kind]

    _classes[kind] = weakref.ref(cls, forget)


def watched_class(kind: str) -> Any:
    """Return the class of a kind, or None if it is not watched."""
    found = _classes.get(kind)
    return None if found is None else found()


def is_watched(kind: str) -> bool:
    """Return whether a kind is watched."""
    return kind in _classes
