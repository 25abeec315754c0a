"""Problem documents (RFC 9457) for clients of requests that fail because of a lock.

    HTTP/1.1 503 Service Unavailable
    Content-Type: application/problem+json
    Retry-After: 1

    {"title": "Service Unavailable", "status": 503,
     "detail": "Another request for the same user is still running. Try again in a moment.",
     "error": "LockTimeout", "lock_id": "ann", "waited_seconds": 5.002}

Who holds a lock, which servers are down and where the code is are for the log,
not for whoever sent the request.
"""

from __future__ import annotations

import dataclasses
import http
import json
from typing import Any

from userlock.errors import (
    CommitInDoubt,
    LockServiceUnavailable,
    LockTimeout,
    StaleWriteError,
    UserLockError,
    WriteViolation,
)

MEDIA_TYPE = "application/problem+json"
#: What answers are made of; other errors of the library are left to the app.
ANSWERED = (LockTimeout, LockServiceUnavailable, StaleWriteError, CommitInDoubt, WriteViolation)
_CONTENTION = (503, 409)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """An answer.

    Attributes:
        status: the HTTP status.
        detail: for people.
        error: the name of the error's class, for programs.
        retry_after: when to try again, in seconds; None where the request must not just be sent
            again.
        facts: what else programs may want to know.
    """

    status: int
    detail: str
    error: str
    retry_after: int | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        """The status in words, as RFC 9457 wants it where a problem has no type of its own."""
        return http.HTTPStatus(self.status).phrase

    @property
    def headers(self) -> dict[str, str]:
        """Content-Type, and Retry-After."""
        found = {"Content-Type": MEDIA_TYPE}
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


def check_contention_status(status: int) -> int:
    """`status`, if a client may be told so that it did not get a lock in time.

    Raises:
        ValueError: it may not.
    """
    if status not in _CONTENTION:
        raise ValueError(f"contention_status must be 503 or 409, not {status!r:.100}")
    return status


def problem_of(error: UserLockError, *, contention_status: int = 503) -> Problem:
    """Return the answer to a request that failed.

    Args:
        error: one of `ANSWERED`.
        contention_status: for a lock that was not to be had in time. 503 is what many client
            libraries retry by themselves; 409 does not count as an outage of the service.
    """
    name = type(error).__name__
    match error:
        case LockTimeout():
            return Problem(
                status=contention_status,
                detail="Another request for the same user is still running. Try again in a moment.",
                error=name,
                retry_after=1,
                facts={
                    "lock_id": error.lock_id,
                    "waited_seconds": round(error.waited_seconds, 3),
                },
            )
        case LockServiceUnavailable():
            return Problem(
                status=503,
                detail="The lock service is not available. Try again in a moment.",
                error=name,
                retry_after=1,
                facts={"lock_id": error.lock_id},
            )
        case StaleWriteError(may_have_landed=False):
            return Problem(
                status=409,
                detail="The data was changed by another request. Nothing was overwritten; "
                "try again.",
                error=name,
                retry_after=0,
                facts={"lock_id": error.lock_id},
            )
        case StaleWriteError() | CommitInDoubt():
            return Problem(
                status=500,
                detail="It is not known whether the change was made. Look before you try again.",
                error=name,
                facts={"lock_id": error.lock_id},
            )
        case _:
            return Problem(
                status=500,
                detail="The server made a mistake, which has been logged.",
                error="InternalServerError",
            )
