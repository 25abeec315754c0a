"""Types of arguments, checked at the call where they are given."""

from __future__ import annotations

from typing import Any


def check(kind: Any, **arguments: object) -> None:
    """Raise TypeError for the first argument that is no instance of the type `kind`."""
    for name, value in arguments.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be of type {kind.__name__}, not {value!r:.100}")
