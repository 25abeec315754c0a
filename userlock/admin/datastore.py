"""Administration of the Datastore store. Listing costs a read for each row."""

from __future__ import annotations

import os
import time

from userlock.admin.health import WARNING, Finding, Findings, new_lock_id, try_out
from userlock.admin.locks import Listing, LockState
from userlock.lock.record import Record
from userlock.lock.store import StoreUnavailable
from userlock.stores.datastore import DatastoreStore

#: For a Datastore that does not answer.
ADVICE = (
    "Are project and database right (GOOGLE_CLOUD_PROJECT), are there credentials (gcloud auth "
    "application-default login), and may they read and write (roles/datastore.user)?"
)


def list_locks(store: DatastoreStore, limit: int) -> Listing:
    records = store.records(limit)
    found = (LockState(name, Record(stored), hashed) for name, hashed, stored in records)
    return Listing.within_room(found, shortest_first=False)


def examine(store: DatastoreStore) -> list[Finding]:
    found = Findings("datastore")
    try:
        began = time.monotonic()
        found.server = store.connect()
        store.read(new_lock_id())
        took = time.monotonic() - began
    except StoreUnavailable as trouble:
        return found.unreachable(trouble.reason, ADVICE)
    found.reachable(took)
    emulated = os.environ.get("DATASTORE_EMULATOR_HOST")
    if emulated:
        add_emulator(found, emulated)
    try_out(found, store, patience=store.timeout)
    return found


def add_emulator(found: Findings, host: str) -> None:
    says = f"this is an emulator at {host}, not Datastore"
    advice = "Unset DATASTORE_EMULATOR_HOST to ask the real one."
    found.add("emulator", WARNING, says, advice, emulator=host)
