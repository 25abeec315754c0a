"""Answers that can be given again, exactly as they were."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from userlock.json_values import check, written

#: About who asks, or when: the user, or the same client later, gets another answer.
_OF_ONE_REQUEST = frozenset({401, 403, 407, 408, 425, 429})

#: They have no body (RFC 9110): servers refuse one.
_WITHOUT_BODY = frozenset({204, 205, 304})

#: Kept with an answer. All others are of one request alone: cookies, dates, lengths, limits.
KEPT_HEADERS = {
    *("cache-control", "content-disposition", "content-encoding", "content-language"),
    *("content-location", "content-type", "etag", "last-modified", "link", "location"),
    *("retry-after", "vary"),
}


class Answer(NamedTuple):
    """An answer.

    Attributes:
        status: the HTTP status; 200 for functions.
        headers: the headers that are kept.
        body: the body; for functions the result as JSON.
        replayed: whether it was given before.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    replayed: bool = False

    @property
    def value(self) -> Any:
        """Return the body of a JSON answer as a value."""
        return json.loads(self.body or b"null")


def json_answer(value: Any, status: int = 200) -> Answer:
    """Return an answer with a JSON body. ValueError: JSON would give another value back."""
    try:
        check(value, "the answer")
    except ValueError as error:
        raise ValueError(f"{error}. To fix it: give strings, numbers, lists and dicts") from None
    if status in _WITHOUT_BODY:
        return Answer(status, (), b"")
    return Answer(status, (("Content-Type", "application/json"),), written(value))


def kept(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the headers that belong to an answer rather than to one request."""
    return tuple((name, value) for name, value in headers if name.lower() in KEPT_HEADERS)


def is_kept(status: int) -> bool:
    """Return whether an answer with that HTTP status ends its request, and is given again."""
    return 200 <= status < 500 and status not in _OF_ONE_REQUEST


def check_status(status: int, *, body: bool = False) -> int:
    """Return the status of an answer that is kept, and so ends its request, or raise ValueError.

    `body`: whether the answer has one.
    """
    if isinstance(status, bool) or not isinstance(status, int) or not is_kept(status):
        never = ", ".join(map(str, sorted(_OF_ONE_REQUEST)))
        raise ValueError(
            f"the answer of a finished request has a status from 200 to 499, but none of {never}; "
            f"not {status!r:.80}"
        )
    if body and status in _WITHOUT_BODY:
        raise ValueError(f"an answer with the status {status} has no body. To fix it: give another")
    return status
