"""What becomes of a violation: raised, told of, or not even looked for."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

from userlock.errors import WriteViolation
from userlock.lock.scope import current_scope, defaults
from userlock.lock.tenure import Tenure
from userlock.ndb.places import Place
from userlock.reports import REPORTS
from userlock.settings import Enforcement, Settings

NO_LOCKS: Mapping[str, Tenure] = {}

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


class Moment:
    """What holds when a write begins. Found out once: each put comes this way.

    Args:
        at: where in the code that is.
        context: the ndb context that it is in.

    Attributes:
        held: the locks that are held.
        transaction: the transaction that the running code is in, if any.
        settings: the settings of the current scope.
        checked: whether the write is checked.
        fenced: whether it is fenced.
    """

    __slots__ = ("checked", "context", "fenced", "held", "settings", "transaction")

    def __init__(self, at: Place | None, context: Any) -> None:
        scope = current_scope()
        if scope is None:
            self.held, self.settings = NO_LOCKS, defaults.settings
        else:
            self.held, self.settings = scope.held, scope.settings
        self.context = context
        self.transaction: bytes | None = context.transaction
        arranges = REPORTS.arranges(at)
        self.fenced = self.settings.fencing and not arranges
        self.checked = (
            self.settings.enforcement is not Enforcement.OFF
            and _suppressed.get() is None
            and not arranges
        )


def report(violation: WriteViolation) -> None:
    """Raise the violation, or tell of it, as the settings say."""
    if REPORTS.report(violation, enforced=current_settings().enforcement is Enforcement.RAISE):
        raise violation
