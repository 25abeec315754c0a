"""Administration of the Datastore store. Listing costs a read for each row."""

from __future__ import annotations

import os
import time

from userlock.admin.diagnostics import Listed, Listing, Room
from userlock.admin.findings import Finding, Findings, Verdict, milliseconds
from userlock.admin.selftest import new_lock_id, try_out
from userlock.lock.store import StoreUnavailable
from userlock.stores.datastore import DatastoreStore

#: For a Datastore that does not answer.
ADVICE = (
    "Are project and database right (GOOGLE_CLOUD_PROJECT), are there credentials (gcloud auth "
    "application-default login), and may they read and write (roles/datastore.user)?"
)


def list_locks(store: DatastoreStore, limit: int) -> Listing:
    """Return the locks, found by queries."""
    room, locks, note = Room(), list[Listed](), ""
    for name, hashed, stored in store.records(limit):
        if room.takes(stored.record):
            locks.append(Listed.of(name, hashed, stored))
        else:
            note = room.NOTE
    return Listing(locks, note)


def examine(store: DatastoreStore) -> list[Finding]:
    """Return the findings about the database."""
    found = Findings("datastore")
    try:
        began = time.monotonic()
        found.server = store.connect()
        store.read(new_lock_id())
        took = time.monotonic() - began
    except StoreUnavailable as trouble:
        found.unreachable(trouble.reason, ADVICE)
        return found
    found.reachable(f"the first answer took {milliseconds(took)}")
    emulated = os.environ.get("DATASTORE_EMULATOR_HOST")
    if emulated:
        add_emulator(found, emulated)
    try_out(found, store, patience=store.timeout)
    return [_in_datastores_words(finding) for finding in found]


def add_emulator(found: Findings, host: str) -> None:
    """Add that an emulator answers in place of Datastore."""
    says = f"this is an emulator at {host}, not Datastore"
    advice = "Unset DATASTORE_EMULATOR_HOST to ask the real one."
    found.warning("emulator", says, advice, emulator=host)


def _in_datastores_words(finding: Finding) -> Finding:
    """Name `base_version`: Datastore's word for a change by a version."""
    if finding.subject != "records" or finding.verdict is not Verdict.OK:
        return finding
    return finding._replace(
        says=f"{finding.says}: base_version is honoured",
        facts={**finding.facts, "base_version": True},
    )
