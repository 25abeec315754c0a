"""Administration of the Datastore store. Listing costs a read for each row."""

from __future__ import annotations

import contextlib
import os

from userlock.admin.health import WARNING, Check, Finding, examine_server, new_lock_id
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
    return Listing.within_room(found)


def examine(store: DatastoreStore) -> list[Finding]:
    server = "datastore"
    with contextlib.suppress(StoreUnavailable):  # the first verb says why
        server = store.connect()

    def ask() -> list[Check]:
        store.read(new_lock_id())
        return emulator(os.environ.get("DATASTORE_EMULATOR_HOST"))

    return examine_server(server, store, ask, ADVICE, store.timeout)


def emulator(host: str | None) -> list[Check]:
    """Return a warning if Datastore is an emulator."""
    says = f"this is an emulator at {host}, not Datastore"
    advice = "Unset DATASTORE_EMULATOR_HOST to ask the real one."
    return [("emulator", WARNING, says, advice)] if host else []
