"""The errors of the RPCs.

`DatastoreError` is the only exception that the engine raises on purpose. It carries one of the
canonical status codes, which each transport translates (gRPC status, HTTP status). Its message is
in the service's own words where these are documented.
"""

from userlock_emulator.port.status import Code as Code
from userlock_emulator.port.status import RpcError
from userlock_emulator.port.status import StorageError as StorageError


class DatastoreError(RpcError):
    """An RPC of Datastore ends with status `code` and the text `message`."""


CONTENTION = (
    "Aborted due to cross-transaction contention. This occurs when multiple transactions "
    "attempt to access the same data, requiring Firestore to abort at least one in order "
    "to enforce serializability."
)
EXPIRED = "The referenced transaction has expired or is no longer valid."


def invalid(message: str) -> DatastoreError:
    """Return the error for a request that is malformed in every state of the database."""
    return DatastoreError(Code.INVALID_ARGUMENT, message)


def unimplemented(feature: str) -> DatastoreError:
    """Return the error for a feature that the emulator does not have (yet)."""
    return DatastoreError(Code.UNIMPLEMENTED, f"The emulator does not support {feature}.")


def contention(detail: str = "") -> DatastoreError:
    """Return the error for a transaction that lost against another one and should be retried.

    Args:
        detail: sentences of the emulator's own, after the service's.
    """
    return DatastoreError(Code.ABORTED, f"{CONTENTION} {detail}" if detail else CONTENTION)


def expired_transaction() -> DatastoreError:
    """Return the error for a transaction id that is unknown, finished, expired or of another
    database.
    """
    return invalid(EXPIRED)
