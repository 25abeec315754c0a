"""Attributes of ours on classes of which there are many objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable


def name_early(cls: type, attributes: Iterable[str]) -> None:
    """Let the objects of a class share these attributes' names, before there is any object.

    The objects of a class keep their values without a dict of their own, as long as the class
    knows the names (PEP 412). CPython closes the list after some thirty objects: attributes
    that come later cost each of them a dict, which the garbage collector has to visit as well.
    All that is lost by a class whose objects cannot be made like this is that saving.
    """
    if hasattr(cls, "__del__"):
        return  # which would be called for an object that was never begun
    with contextlib.suppress(TypeError):
        first: object = object.__new__(cls)
        for name in attributes:
            object.__setattr__(first, name, None)
