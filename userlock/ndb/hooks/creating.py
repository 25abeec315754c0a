"""What ndb creates by itself, in `get_or_insert`."""

from __future__ import annotations

from typing import Any


class Creator:
    """Stands for the model class in ndb's `get_or_insert`.

    ndb creates the entity there and puts it, perhaps on a later turn of the
    event loop. What it creates by calling this is told where that was asked
    for.
    """

    def __init__(self, cls: Any, place: object | None) -> None:
        self._cls = cls
        self._place = place

    def __call__(self, **kwargs: Any) -> Any:
        entity = self._cls(**kwargs)
        entity.__dict__["_userlock_put_at"] = self._place
        return entity

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cls, name)
