"""Arguments of jobs as JSON: what a row can carry, checked when the job is staged."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from userlock.errors import JobArgumentsRefused

#: An entity has at most 1 MiB. The rest is room for the other properties, and two errors.
MOST_BYTES = 900_000
_MOST_DEPTH = 50


def encode(job: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """Return the arguments of a call as JSON.

    Raises:
        JobArgumentsRefused: a value that JSON would not give back as it is, or too many bytes.
    """
    for position, value in enumerate(args):
        _check(job, value, f"argument {position + 1}", _MOST_DEPTH)
    for name, value in kwargs.items():
        _check(job, value, name, _MOST_DEPTH)
    try:
        text = json.dumps([list(args), dict(kwargs)], ensure_ascii=False, separators=(",", ":"))
        encoded = text.encode()
    except UnicodeEncodeError:  # a lone surrogate; JSON can escape it
        encoded = json.dumps([list(args), dict(kwargs)], separators=(",", ":")).encode()
    if len(encoded) > MOST_BYTES:
        raise JobArgumentsRefused(
            f"the arguments of job {job} have {len(encoded):,} bytes as JSON; the most is "
            f"{MOST_BYTES:,}. To fix it: store the data in an entity, and pass its id",
            job=job,
        )
    return encoded


def decode(encoded: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments.

    Raises:
        ValueError: it is nothing that `encode` has written.
    """
    try:
        found = json.loads(encoded)
    except RecursionError:
        found = None
    match found:
        case [list(args), dict(kwargs)]:
            return args, kwargs
    raise ValueError("the row has no arguments")


def _check(job: str, value: Any, place: str, depth: int) -> None:
    """Refuse a value that would come back as another one."""
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return
    if not depth:
        raise _refused(job, f"{place} is nested too deeply")
    if kind in (list, tuple):
        for position, each in enumerate(value):
            _check(job, each, f"{place}[{position}]", depth - 1)
    elif kind is dict:
        for name, each in value.items():
            if not isinstance(name, str):
                raise _refused(job, f"{place} has the key {name!r:.80}, which is no string")
            _check(job, each, f"{place}[{name!r:.40}]", depth - 1)
    else:
        shown = f" {value!r}" if kind is float else ""
        raise _refused(job, f"{place} is a {kind.__module__}.{kind.__qualname__}{shown}")


def _refused(job: str, why: str) -> JobArgumentsRefused:
    return JobArgumentsRefused(
        f"job {job} cannot carry its arguments as JSON: {why.replace('builtins.', '')}. To fix it: "
        f"pass strings, finite numbers, booleans, None, lists and dicts (of an entity its id, of a "
        f"time its isoformat())",
        job=job,
    )
