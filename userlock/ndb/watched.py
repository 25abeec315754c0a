"""Which kinds are watched: those that a model of userlock's has claimed."""

from __future__ import annotations

import weakref
from typing import Any

_classes: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def watch(kind: str, cls: Any) -> None:
    """Watch a kind from now on. The latest class of a kind counts, as in ndb."""
    _classes[kind] = cls


def watched_class(kind: str) -> Any:
    """Return the class of a kind, or None if it is not watched."""
    return _classes.get(kind)


def is_watched(kind: str) -> bool:
    """Return whether a kind is watched."""
    return kind in _classes
