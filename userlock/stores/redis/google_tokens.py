"""Access tokens of Google's IAM as passwords.

A token lives for an hour. The first new connection in its last ten minutes still
gets it, and lets a thread fetch the next one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import functools
import threading
from collections.abc import Callable
from typing import Any

import google.auth
import google.auth.exceptions
import google.auth.transport.requests
import redis
from redis.credentials import CredentialProvider

from userlock.fork import reset_in_child
from userlock.waits import begun_in_thread

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
#: A token is replaced so long before its end.
_EARLY = datetime.timedelta(minutes=10)
#: For one request for a token, in seconds.
_TIMEOUT = 5.0


class GoogleTokens(CredentialProvider):
    """Access tokens as passwords: of google-auth's credentials, or of the environment's.

    Thread-safe; survives fork.
    """

    def __init__(
        self,
        credentials: Any = None,
        *,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._credentials = credentials
        self._now = now
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.RLock()  # the garbage collector may release a lock at any time
        self._refreshing: concurrent.futures.Future[object] | None = None

    def get_credentials(self) -> tuple[str, str]:
        """Return the user's name and a token; `redis.AuthenticationError` if there is none."""
        try:
            with self._mutex:
                if self._credentials is None:
                    self._credentials, _ = google.auth.default(scopes=[_SCOPE])
                left = self._left()
                if left <= datetime.timedelta():
                    self._credentials.refresh(_request)
                elif left < _EARLY and (self._refreshing is None or self._refreshing.done()):
                    # If that fails, the old one is good for some minutes yet.
                    refresh = functools.partial(self._credentials.refresh, _request)
                    with contextlib.suppress(RuntimeError):  # no more threads
                        self._refreshing = begun_in_thread(refresh, "userlock-token", daemon=True)
                return "default", str(self._credentials.token)
        except google.auth.exceptions.GoogleAuthError as error:
            raise redis.AuthenticationError(
                f"Google gave no access token ({type(error).__name__})"
            ) from error

    def _left(self) -> datetime.timedelta:
        token, expiry = self._credentials.token, self._credentials.expiry
        if not token:
            return datetime.timedelta()
        if expiry is None:
            return datetime.timedelta.max
        left: datetime.timedelta = expiry.replace(tzinfo=datetime.UTC) - self._now()
        return left


def _request(*args: Any, **kwargs: Any) -> Any:
    """Send a request of google-auth's, within a time limit."""
    send: Any = google.auth.transport.requests.Request()
    return send(*args, **{**kwargs, "timeout": _TIMEOUT})
