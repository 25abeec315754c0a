"""The site's side of the payment provider.

charge() ──────▶ 201              its id
         ──────▶ 402              `CardDeclined`: final
         ──────▶ 503, silence, a lost reply
                                  OSError: it may have charged. Ask again with the same key
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 1.0


class CardDeclined(Exception):
    """The provider refuses the card. It will give the same answer again."""


class ProviderUnavailable(OSError):
    """The provider gives no usable answer for now."""


def charge(
    url: str, key: str, cents: int, reference: str, *, sent: Callable[[], None] = lambda: None
) -> str:
    """Charge a card, and return the charge's id.

    Args:
        url: the provider's.
        key: the idempotency key. With the same one nothing is charged twice.
        cents: the price.
        reference: the order.
        sent: called when the request is sent, before its reply is read.

    Raises:
        CardDeclined: the answer is final.
        OSError: it may have charged.
    """
    body = {"cents": cents, "reference": reference}
    status, document = _ask(url, "POST", "/charges", body, {"Idempotency-Key": key}, sent)
    if status == 402:
        raise CardDeclined(str(document["error"]))
    if status == 503:
        raise ProviderUnavailable(str(document["error"]))
    if status != 201:
        raise RuntimeError(f"the payment provider refuses the request: {status} {document}")
    return str(document["id"])


def state(url: str) -> dict[str, Any]:
    """Return the provider's mood and keys, or raise OSError."""
    return _ask(url, "GET", "/")[1]


def set_mood(url: str, mood: str) -> None:
    """Change the provider's mood."""
    _ask(url, "PUT", "/mood", {"mood": mood})


def _ask(
    url: str,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
    sent: Callable[[], None] = lambda: None,
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)
    with contextlib.closing(connection):
        try:
            connection.request(method, path, json.dumps(body), headers or {})
            sent()
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (http.client.HTTPException, ValueError) as error:  # half a reply
            raise ProviderUnavailable(f"half a reply: {type(error).__name__}") from error
