"""Examination of a store's servers."""

from __future__ import annotations

from userlock.admin.findings import Finding, Findings
from userlock.admin.kinds import kind_of
from userlock.admin.selftest import try_out
from userlock.lock.store import LeaseStore

#: How long a third party's store is taken to wait for a reply, in seconds.
_USUAL_PATIENCE = 0.3


def examine(store: LeaseStore) -> list[Finding]:
    """Return the findings about a store's servers; see `Kind.examine`.

    Of a third party's store only the records and the speed are tried.
    """
    kind = kind_of(store)
    if kind is not None:
        return kind.examine(store)
    found = Findings(type(store).__name__)
    try_out(found, store, patience=_USUAL_PATIENCE)
    return found
