"""The certificates of an issuer of tokens, fetched when they are needed, and kept.

{key id: certificate in PEM}, as Google publishes them for google-auth.

A token that names an unknown key may be signed with a new one, so they are fetched
again, but not more often than once a minute: tokens can be sent by anybody.
"""

from __future__ import annotations

import json
import math
import threading
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from userlock.clock import Clock
from userlock.fork import reset_in_child

#: Fetched again after that time, in seconds.
FRESH_SECONDS = 3600.0
#: Used for so long while the issuer does not answer, in seconds.
USABLE_SECONDS = 6 * 3600.0
#: Between two fetches for unknown keys, and after a fetch that has failed.
AGAIN_SECONDS = 60.0
AFTER_FAILURE_SECONDS = 5.0
_TIMEOUT_SECONDS = 3.0
_MOST_BYTES = 200_000


class CertificatesUnavailable(Exception):
    """The certificates cannot be had for now."""


class Certificates:
    """The certificates at a URL. Thread-safe."""

    def __init__(self, url: str, clock: Clock, fetch: Callable[[str], bytes] | None = None) -> None:
        self._url = url
        self._clock = clock
        self._fetch = fetch or _fetch
        self._by_id: Mapping[str, bytes] = {}
        self._fetched: float | None = None
        self._failed: tuple[float, str] | None = None
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()

    def get(self, key_id: str) -> bytes | None:
        """Return a key's certificate in PEM; None if the issuer has no such key.

        Raises:
            CertificatesUnavailable: the issuer does not answer, and nothing usable is kept.
        """
        certificate = self._by_id.get(key_id)
        if certificate is not None and self._age() < FRESH_SECONDS:
            return certificate  # without the lock: another thread may be waiting for the issuer
        with self._lock:
            wanted = FRESH_SECONDS if key_id in self._by_id else AGAIN_SECONDS
            problem = self._refresh() if self._age() >= wanted else ""
            certificate = self._by_id.get(key_id)
            if problem and (certificate is None or self._age() >= USABLE_SECONDS):
                raise CertificatesUnavailable(f"{self._url}: {problem}")
            return certificate

    def _age(self) -> float:
        return math.inf if self._fetched is None else self._clock.now() - self._fetched

    def _refresh(self) -> str:
        """Fetch them again. Returns the problem, if there is one."""
        now = self._clock.now()
        if self._failed is not None and now - self._failed[0] < AFTER_FAILURE_SECONDS:
            return self._failed[1]
        try:
            self._by_id = _certificates(self._fetch(self._url))
        except Exception as error:
            self._failed = self._clock.now(), f"{type(error).__name__}: {error}"[:200]
            return self._failed[1]
        self._fetched, self._failed = self._clock.now(), None
        return ""


def _fetch(url: str) -> bytes:
    opener = urllib.request.build_opener(_NoRedirections)
    with opener.open(url, timeout=_TIMEOUT_SECONDS) as answer:
        document: bytes = answer.read(_MOST_BYTES + 1)
    if len(document) > _MOST_BYTES:
        raise ValueError("the document is too long")
    return document


class _NoRedirections(urllib.request.HTTPRedirectHandler):
    """A redirection could lead from TLS to a place without it."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _certificates(document: bytes) -> dict[str, bytes]:
    """Return the certificates in PEM by key id."""
    found = json.loads(document)
    texts = found.items() if isinstance(found, dict) else ()
    by_id = {each: str(text).encode() for each, text in texts if str(text)[:5] == "-----"}
    if not by_id:
        raise ValueError("the document has no certificates")
    return by_id
