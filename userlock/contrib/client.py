"""Send a request with an idempotency key until it has an answer; for clients of an app.

    from userlock.contrib.client import send_once

    answer = send_once(lambda headers: requests.post(url, json=order, headers=headers, timeout=10))

Needs nothing but Python: `send` is a function of `requests`, `httpx` or another client.
"""

from __future__ import annotations

import email.utils
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from userlock.arguments import check_errors, check_kind
from userlock.clock import SYSTEM_CLOCK, Clock

#: Answers after which the same request is sent again: it runs, too many wait, or nobody knows what
#: has become of it.
AGAIN = frozenset({409, 425, 429, 500, 502, 503, 504})
_FIRST_PAUSE, _MOST_PAUSE = 0.5, 30.0


class Response(Protocol):
    """An answer, as of `requests` and `httpx`."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


_R = TypeVar("_R", bound=Response)


def send_once(
    send: Callable[[dict[str, str]], _R],
    *,
    key: str = "",
    seconds: float = 60.0,
    transient: type[Exception] | Iterable[type[Exception]] = OSError,
    clock: Clock = SYSTEM_CLOCK,
) -> _R:
    """Send a request until it has an answer that counts; return it, or the last one.

    Each time with the same key, so that it is done once. Pauses are as `Retry-After` says, else
    0.5 s and twice that each time up to 30 s, half of it random. A stored answer counts, also 409.

    Args:
        send: sends the request with these headers, with a time-out of its own.
        key: the idempotency key; by default a random one. Give a stored one if another process may
            have to send the request again.
        seconds: no attempt begins later than that.
        transient: errors after which it is sent again: `OSError` has those of `requests`; of
            `httpx` it is `httpx.TransportError`.
        clock: for pauses.

    Raises:
        Exception: an error of `transient`, of the last attempt; or another one.
    """
    check_kind("key", key, str, "a str")  # None or 0 would be random, each time another one
    transient = (transient,) if isinstance(transient, type) else tuple(transient)
    check_errors("transient=", transient)
    headers = {"Idempotency-Key": key or str(uuid.uuid4())}
    ends, pause = clock.now() + seconds, _FIRST_PAUSE
    while True:
        wait = pause * random.uniform(0.5, 1)
        try:
            answer = send(dict(headers))
        except transient:
            if clock.now() + wait > ends:
                raise
        else:
            wait = _retry_after(answer, clock) or wait
            counts = answer.status_code not in AGAIN or "Idempotent-Replayed" in answer.headers
            if counts or clock.now() + wait > ends:
                return answer
        clock.sleep(wait)
        pause = min(2 * pause, _MOST_PAUSE)


def _retry_after(answer: Response, clock: Clock) -> float:
    """Return how long a client is to wait, by seconds or a date; 0 if it is not said."""
    text = answer.headers.get("Retry-After", "")
    if text.isascii() and text.isdecimal():
        return float(text)
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - clock.wall(), 0.0)
    except (ValueError, OverflowError):
        return 0.0
