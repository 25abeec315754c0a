"""Reads of attributes, watched where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.cloud.ndb import model

_watched = False


def watch_attributes(tracked: type, used: Callable[[Any], None]) -> None:
    """From now on, call `used(entity)` before a property of a tracked entity is read.

    Once per process; what this costs is paid from the first call on.
    """
    global _watched
    if _watched:
        return
    _watched = True
    get = model.Property.__get__

    def watched_get(self: Any, entity: Any, unused_cls: Any = None) -> Any:
        if isinstance(entity, tracked) and not isinstance(self, model.ModelKey):
            used(entity)
        return get(self, entity, unused_cls)

    model.Property.__get__ = watched_get
