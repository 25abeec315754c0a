"""Leases in Google Cloud Datastore: a row per lock, changed by compare and swap."""

from __future__ import annotations

try:
    import google.cloud.ndb  # noqa: F401  (brings gRPC and google.cloud.datastore_v1 along)
except ImportError as error:
    raise ImportError(
        "the Datastore store needs google-cloud-ndb: pip install google-cloud-ndb"
    ) from error

from userlock.stores.datastore.rows import DEFAULT_KIND
from userlock.stores.datastore.rpc import TIMEOUT
from userlock.stores.datastore.store import DatastoreStore

__all__ = ["DEFAULT_KIND", "TIMEOUT", "DatastoreStore", "of_parts"]

of_parts = DatastoreStore.of_parts
