"""The errors of the RPCs.

`DatastoreError` is the only exception that the engine raises on purpose. It carries one of the
canonical status codes, which each transport translates (gRPC status, HTTP status). Its message is
in the service's own words where these are documented.
"""

from enum import IntEnum


class Code(IntEnum):
    """Canonical status codes, with the numbers of google.rpc.Code."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class DatastoreError(Exception):
    """An RPC ends with status `code` and the text `message`."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class StorageError(Exception):
    """The data file cannot be used: unreadable, damaged, or from a newer version.

    The text is one line, meant for the command line.
    """


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


def contention() -> DatastoreError:
    """Return the error for a transaction that lost against another one and should be retried."""
    return DatastoreError(Code.ABORTED, CONTENTION)


def expired_transaction() -> DatastoreError:
    """Return the error for a transaction id that is unknown, finished, expired or of another
    database.
    """
    return invalid(EXPIRED)
