"""Values that JSON gives back as they are."""

from __future__ import annotations

import json
import math
from typing import Any

_MOST_DEPTH = 50
_PLAIN = frozenset({type(None), bool, int, str})


def check(
    value: Any, place: str, *, sequences: tuple[type, ...] = (list, tuple), depth: int = _MOST_DEPTH
) -> None:
    """Refuse a value that would come back as another one.

    Args:
        value: the value.
        place: its name, for the error.
        sequences: the types that become arrays. A tuple comes back as a list.
        depth: how deeply it may be nested.

    Raises:
        ValueError: its text names the place of the value, and its kind.
    """
    kind = type(value)
    if kind in _PLAIN or (kind is float and math.isfinite(value)):
        return
    if not depth:
        raise ValueError(f"{place} is nested too deeply")
    if kind in sequences:
        for position, each in enumerate(value):
            if type(each) not in _PLAIN:
                check(each, f"{place}[{position}]", sequences=sequences, depth=depth - 1)
    elif kind is dict:
        for name, each in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{place} has the key {name!r:.80}, which is no string")
            if type(each) not in _PLAIN:
                check(each, f"{place}[{name!r:.40}]", sequences=sequences, depth=depth - 1)
    else:
        shown = f" {value!r}" if kind is float else ""
        named = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        raise ValueError(f"{place} is a {named}{shown}")


def written(value: Any, *, sort_keys: bool = False) -> bytes:
    """Return a checked value as JSON."""
    how: dict[str, Any] = {"separators": (",", ":"), "sort_keys": sort_keys}
    try:
        return json.dumps(value, ensure_ascii=False, **how).encode()
    except UnicodeEncodeError:  # a lone surrogate; JSON can escape it
        return json.dumps(value, **how).encode()


def copied(value: Any) -> Any:
    """Return a checked value as JSON gives it back, which shares nothing with it."""
    return json.loads(json.dumps(value))
