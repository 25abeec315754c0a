"""What becomes of a violation: raised, told of, or not even looked for."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from userlock.errors import WriteViolation
from userlock.lock.scope import current_scope, defaults
from userlock.ndb.places import Place
from userlock.reports import REPORTS
from userlock.settings import Enforcement, Settings

_suppressed: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "userlock_suppressed", default=None
)


@contextlib.contextmanager
def suppress(reason: str) -> Iterator[None]:
    """Check nothing inside the block. Writes are still fenced.

    Args:
        reason: why this is right here, for whoever reads the code next.

    Raises:
        ValueError: no reason is given.
    """
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("suppress() needs a reason: say why writing without the lock is right")
    token = _suppressed.set(reason)
    try:
        yield
    finally:
        _suppressed.reset(token)


def current_settings() -> Settings:
    """The settings of the current scope, or the process's defaults."""
    scope = current_scope()
    return defaults.settings if scope is None else scope.settings


def checking(at: Place | None) -> bool:
    """Whether a write at that place is checked now."""
    return (
        current_settings().enforcement is not Enforcement.OFF
        and _suppressed.get() is None
        and not REPORTS.arranges(at)
    )


def fencing(at: Place | None) -> bool:
    """Whether a write at that place is fenced."""
    return current_settings().fencing and not REPORTS.arranges(at)


def report(violation: WriteViolation) -> None:
    """Raise the violation, or tell of it, as the settings say."""
    if REPORTS.report(violation, enforced=current_settings().enforcement is Enforcement.RAISE):
        raise violation
