"""The reaction to a violation: raised, logged, or switched off, per scope.

One write is not checked if the caller says why: `put(unguarded="...")`.
"""

from __future__ import annotations

from userlock.callsite import CallSite, here
from userlock.errors import WriteViolation
from userlock.lock.configuration import defaults
from userlock.lock.scope import current_scope
from userlock.reports import REPORTS
from userlock.settings import Enforcement, Settings


def current_settings() -> Settings:
    """Return the settings of the current scope, or the process's defaults."""
    scope = current_scope()
    return defaults.settings if scope is None else scope.settings


def place_of_read() -> CallSite | None:
    """Return the application's call site, if the places of reads are captured."""
    return here() if current_settings().capture_places else None


def report(violation: WriteViolation) -> None:
    """Raise the violation, or log it, as the settings say."""
    if REPORTS.report(violation, enforced=current_settings().enforcement is Enforcement.RAISE):
        raise violation
