"""Arguments of jobs as JSON: what a row can carry, checked when the job is staged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from userlock.errors import JobArgumentsRefused
from userlock.json_values import check, written

#: An entity has at most 1 MiB. The rest is room for the other properties, and two errors.
MOST_BYTES = 900_000


def encode(job: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """Return the arguments of a call as JSON.

    Raises:
        JobArgumentsRefused: a value that JSON would not give back as it is, or too many bytes.
    """
    try:
        for position, value in enumerate(args):
            check(value, f"argument {position + 1}", sequences=(list,))
        for name, value in kwargs.items():
            check(value, name, sequences=(list,))
    except ValueError as error:
        raise _refused(job, str(error)) from None
    encoded = written([list(args), dict(kwargs)])
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


def _refused(job: str, why: str) -> JobArgumentsRefused:
    return JobArgumentsRefused(
        f"job {job} cannot carry its arguments as JSON: {why}. To fix it: "
        f"pass strings, finite numbers, booleans, None, lists and dicts (of an entity its id, of a "
        f"time its isoformat())",
        job=job,
    )
