"""The reaction to a violation: raised, logged, or switched off, per scope.

One write is not checked if the caller says why: `put(unguarded="...")`.
"""

from __future__ import annotations

from typing import Any

from userlock.callsite import CallSite, here
from userlock.errors import WriteViolation
from userlock.lock.configuration import defaults
from userlock.lock.scope import current_scope
from userlock.ndb.provenance import NO_LOCKS
from userlock.reports import REPORTS, unlocked_blocks
from userlock.settings import Enforcement, Settings


def current_settings() -> Settings:
    """Return the settings of the current scope, or the process's defaults."""
    scope = current_scope()
    return defaults.settings if scope is None else scope.settings


def place_of_read() -> CallSite | None:
    """Return the application's call site, if the places of reads are captured."""
    return here() if current_settings().capture_places else None


class Moment:
    """The call site, ndb context, locks, transaction and settings at the start of a write."""

    __slots__ = ("at", "checked", "context", "fenced", "held", "settings", "transaction")

    def __init__(self, at: CallSite | None, context: Any, unguarded: str = "") -> None:
        scope = current_scope()
        self.at = at
        self.context = context
        self.held = NO_LOCKS if scope is None else scope.held
        self.settings = defaults.settings if scope is None else scope.settings
        self.transaction: bytes | None = context.transaction
        arranges = REPORTS.is_test_code is not None and REPORTS.arranges(at)
        self.fenced = self.settings.fencing and not arranges
        self.checked = (
            self.settings.enforcement is not Enforcement.OFF
            and REPORTS.checks
            and unlocked_blocks.get() < 1
            and not arranges
            and not unguarded
        )


def report(violation: WriteViolation) -> None:
    """Raise the violation, or log it, as the settings say."""
    if REPORTS.report(violation, enforced=current_settings().enforcement is Enforcement.RAISE):
        raise violation
