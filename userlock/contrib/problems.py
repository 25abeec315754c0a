"""Describe requests that fail because of a lock, as problem documents (RFC 9457).

    HTTP/1.1 503 Service Unavailable
    Content-Type: application/problem+json
    Retry-After: 1

    {"title": "Service Unavailable", "status": 503,
     "detail": "Another request for the same user is still running. Try again in a moment.",
     "error": "LockTimeout", "lock_id": "ann", "waited_seconds": 5.002}

The holder, the servers and the call sites are for the log, not for the client.
`userlock.configure(show_ids=…)` hides the lock id.
"""

from __future__ import annotations

import dataclasses
import http
import json
from typing import Any

from userlock import errors
from userlock.errors import LockTimeout, NotUnique, StaleWriteError, TooManyWaiting, UserLockError
from userlock.ids import exact

_MOMENT = "Try again in a moment."
_MISTAKE = 500, None, "The server made a mistake, which has been logged."
_IN_DOUBT = 500, None, "It is not known whether the change was made. Look before you try again."
_STALE = "The data was changed by another request. Nothing was overwritten; try again."
_TAKEN = "Another entry has this value, which only one may have. Choose another one."
_REUSED = "The Idempotency-Key belongs to a request with other parameters."
_RUNNING = "This request is still running. Try again in a moment, with the same key."
_SENT_AGAIN = "This request was sent again, and runs there. Try again with the same key."
_SERVICE_DOWN = "Another service does not answer. Try again with the same key."
#: Status, Retry-After and text of each error; `retry_after` of an error itself counts more. The
#: first class that fits counts.
_ANSWERS: dict[type[UserLockError], tuple[int, int | None, str]] = {
    TooManyWaiting: (429, 1, f"Too many requests for the same user are waiting. {_MOMENT}"),
    LockTimeout: (503, 1, f"Another request for the same user is still running. {_MOMENT}"),
    errors.LockServiceUnavailable: (503, 1, f"The lock service is not available. {_MOMENT}"),
    StaleWriteError: (409, 0, _STALE),
    errors.CommitInDoubt: _IN_DOUBT,
    NotUnique: (409, None, _TAKEN),
    errors.WriteViolation: _MISTAKE,
    errors.IdempotencyKeyRefused: (400, None, "The request needs an Idempotency-Key: {error}."),
    errors.IdempotencyKeyReused: (422, None, _REUSED),
    errors.RequestRunning: (409, 1, _RUNNING),
    errors.RequestTooLarge: (413, None, "The request has more than {error.most_bytes:,} bytes."),
    errors.RequestIncomplete: (400, None, "The request is not complete: {error}."),
    errors.NotSignedIn: (401, None, "Sign in first."),
    errors.FlowTakenOver: (409, 1, _SENT_AGAIN),
    errors.ExternalUnavailable: (503, 1, _SERVICE_DOWN),
}
#: The errors that become problem documents. Other errors of the library are left to the app.
ANSWERED = tuple(_ANSWERS)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """An answer.

    Attributes:
        status: the HTTP status.
        detail: a text for people.
        error: the name of the error's class, for programs.
        retry_after: the seconds after which to try again; None if the request must not just be
            sent again.
        facts: further facts for programs.
    """

    status: int
    detail: str
    error: str
    retry_after: int | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the status in words, as RFC 9457 requires of problems without a type."""
        return http.HTTPStatus(self.status).phrase

    @property
    def headers(self) -> dict[str, str]:
        """Return Content-Type and Retry-After."""
        found = {"Content-Type": "application/problem+json"}
        if self.retry_after is not None:
            found["Retry-After"] = str(self.retry_after)
        return found

    @property
    def body(self) -> bytes:
        """Return the JSON document."""
        document = {"title": self.title, "status": self.status, "detail": self.detail}
        return json.dumps({**document, "error": self.error, **self.facts}).encode()


def problem_of(error: UserLockError, *, contention_status: int = 503) -> Problem:
    """Return the answer to a request that failed.

    Args:
        error: one of `ANSWERED`.
        contention_status: the status for a lock that was not free in time. Many client
            libraries retry 503 by themselves; 409 does not count as an outage of the service.
    """
    found = next((_ANSWERS[kind] for kind in ANSWERED if isinstance(error, kind)), _MISTAKE)
    if isinstance(error, StaleWriteError) and error.may_have_landed:
        found = _IN_DOUBT
    status, retry_after, detail = found
    facts: dict[str, Any] = {}
    if isinstance(error, NotUnique):
        facts["constraint"] = error.constraint
    elif hasattr(error, "lock_id"):
        facts["lock_id"] = None if error.lock_id is None else exact(error.lock_id)
    if isinstance(error, LockTimeout):
        facts["waited_seconds"] = round(error.waited_seconds, 3)
        if isinstance(error, TooManyWaiting):
            facts["waiting"] = error.waiting
        else:
            status = contention_status
    if found is _MISTAKE:  # which is for the log
        return Problem(status=status, detail=detail, error="InternalServerError")
    return Problem(
        status=status,
        detail=detail.format(error=error),
        error=type(error).__name__,
        retry_after=getattr(error, "retry_after", retry_after),
        facts=facts,
    )
