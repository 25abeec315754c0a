"""Parts of the pages of jobs and of requests: errors, forms, moments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from userlock.admin.snapshot import timestamp
from userlock.errors import LockServiceUnavailable, LockTimeout
from userlock.ndb.client import DATASTORE_ERRORS
from userlock.words import legible

_SHOWN = 300

Render = Callable[..., str]
Answer = str | tuple[str, int]
#: Renders a title and a text.
Message = Callable[[str, str], str]


def guarded(
    view: Callable[..., Any],
    context: Callable[[], contextlib.AbstractContextManager[None]],
    message: Message,
) -> Callable[..., Any]:
    """Return a view that runs in an ndb context, and answers its errors."""

    def answered(**arguments: str) -> Any:
        try:
            with context():
                return view(**arguments)
        except LockServiceUnavailable as error:
            return message("The lock store does not answer", error.reason), 503
        except LockTimeout:
            text = "Another request has the lock of its owner. Try again in a moment."
            return message("The owner is busy", text), 503
        except DATASTORE_ERRORS as error:
            text = legible(str(error).rpartition("last exception: ")[2], _SHOWN)
            return message("Datastore does not answer", text), 503

    return answered


def moment(at: float) -> str:
    """Return a time in seconds since 1970 for people."""
    return (timestamp(at) or "?")[:19].replace("T", " ") + " UTC"


def is_carried(text: str) -> bool:
    """Return whether a form carries a text as it is."""
    return text.isprintable() and "\ufffd" not in text
