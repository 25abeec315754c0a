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

from userlock.errors import (
    CommitInDoubt,
    ExternalUnavailable,
    FlowError,
    FlowTakenOver,
    IdempotencyKeyRefused,
    IdempotencyKeyReused,
    LockServiceUnavailable,
    LockTimeout,
    NotSignedIn,
    NotUnique,
    RequestIncomplete,
    RequestRunning,
    RequestTooLarge,
    StaleWriteError,
    TooManyWaiting,
    UserLockError,
    WriteViolation,
)
from userlock.ids import exact

#: The errors that become problem documents, `TooManyWaiting` as a `LockTimeout`. Other errors of
#: the library are left to the app.
ANSWERED = (
    LockTimeout,
    LockServiceUnavailable,
    StaleWriteError,
    CommitInDoubt,
    NotUnique,
    WriteViolation,
    IdempotencyKeyRefused,
    IdempotencyKeyReused,
    RequestRunning,
    RequestTooLarge,
    RequestIncomplete,
    NotSignedIn,
    FlowTakenOver,
    ExternalUnavailable,
)


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
        document = {
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "error": self.error,
            **self.facts,
        }
        return json.dumps(document).encode()


def problem_of(error: UserLockError, *, contention_status: int = 503) -> Problem:
    """Return the answer to a request that failed.

    Args:
        error: one of `ANSWERED`.
        contention_status: the status for a lock that was not free in time. Many client
            libraries retry 503 by themselves; 409 does not count as an outage of the service.
    """
    if isinstance(error, FlowError):
        return _problem_of_flow(error)
    if isinstance(error, NotUnique):
        detail = "Another entry has this value, which only one may have. Choose another one."
        facts: dict[str, Any] = {"constraint": error.constraint}
        return Problem(status=409, detail=detail, error="NotUnique", facts=facts)
    retry_after: int | None = None
    match error:
        case TooManyWaiting():
            status, retry_after = 429, error.retry_after
            detail = "Too many requests for the same user are waiting. Try again in a moment."
        case LockTimeout():
            status, retry_after = contention_status, 1
            detail = "Another request for the same user is still running. Try again in a moment."
        case LockServiceUnavailable():
            status, retry_after = 503, 1
            detail = "The lock service is not available. Try again in a moment."
        case StaleWriteError(may_have_landed=False):
            status, retry_after = 409, 0
            detail = "The data was changed by another request. Nothing was overwritten; try again."
        case StaleWriteError() | CommitInDoubt():
            status = 500
            detail = "It is not known whether the change was made. Look before you try again."
        case _:
            return Problem(
                status=500,
                detail="The server made a mistake, which has been logged.",
                error="InternalServerError",
            )
    lock_id = error.lock_id
    facts = {"lock_id": None if lock_id is None else exact(lock_id)}
    if isinstance(error, LockTimeout):
        facts["waited_seconds"] = round(error.waited_seconds, 3)
    if isinstance(error, TooManyWaiting):
        facts["waiting"] = error.waiting
    return Problem(
        status=status,
        detail=detail,
        error=type(error).__name__,
        retry_after=retry_after,
        facts=facts,
    )


def _problem_of_flow(error: FlowError) -> Problem:
    """Return the answer to a request with an idempotency key."""
    retry_after: int | None = None
    match error:
        case IdempotencyKeyRefused():
            status, detail = 400, f"The request needs an Idempotency-Key: {error}."
        case IdempotencyKeyReused():
            status = 422
            detail = "The Idempotency-Key belongs to a request with other parameters."
        case RequestRunning():
            status, retry_after = 409, error.retry_after
            detail = "This request is still running. Try again in a moment, with the same key."
        case RequestTooLarge():
            status, detail = 413, f"The request has more than {error.most_bytes:,} bytes."
        case RequestIncomplete():
            status, detail = 400, f"The request is not complete: {error}."
        case NotSignedIn():
            status, detail = 401, "Sign in first."
        case FlowTakenOver():
            status, retry_after = 409, 1
            detail = "This request was sent again, and runs there. Try again with the same key."
        case ExternalUnavailable():
            status, retry_after = 503, error.retry_after
            detail = "Another service does not answer. Try again with the same key."
        case _:
            status, detail = 500, "The server made a mistake, which has been logged."
    return Problem(
        status=status, detail=detail, error=type(error).__name__, retry_after=retry_after
    )
