"""The values in a GQL query: literals, and parameters bound to its binding sites."""

import base64
import binascii
import re
from datetime import UTC, datetime

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.gql_lexer import gql_error
from userlock_emulator.datastore.protos import (
    MICROSECONDS,
    KeyPb,
    Message,
    Value,
    ValuePb,
    timestamp,
)
from userlock_emulator.port.numbers import whole_number

_BINDING_NAME = re.compile(r"[A-Za-z_$][A-Za-z_$0-9]*")
_RESERVED = re.compile(r"__.*__")
# RFC 3339, section 5.6.
_DATETIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Bindings:
    """The parameters of a query, each with a flag that records its use."""

    def __init__(self, gql: Message) -> None:
        for name in gql.named_bindings:
            if not _BINDING_NAME.fullmatch(name) or _RESERVED.fullmatch(name):
                raise gql_error(f'the binding name "{name}" is not allowed.')
        self._named = gql.named_bindings
        self._numbered = gql.positional_bindings
        self._used: set[int] = set()

    def find(self, site: str) -> Message:
        """Return the GqlQueryParameter for a binding site.

        Raises:
            DatastoreError: INVALID_ARGUMENT.
        """
        if not site[:1].isdecimal():
            if site not in self._named:
                raise gql_error(f"no binding for the site @{site}.")
            return _checked(site, self._named[site])
        number = whole_number(site, least=1, most=len(self._numbered))
        if number is None:
            raise gql_error(f"no binding for the site @{site[:40]}.")
        self._used.add(number)
        return _checked(site, self._numbered[number - 1])

    def check_used(self) -> None:
        """Check that each numbered parameter has a site. Named ones need none.

        Raises:
            DatastoreError: INVALID_ARGUMENT.
        """
        for number in range(1, len(self._numbered) + 1):
            if number not in self._used:
                raise gql_error(f"no site for the positional binding {number}.")


def _checked(site: str, parameter: Message) -> Message:
    if parameter.WhichOneof("parameter_type") is None:
        raise gql_error(f"the binding for the site @{site} is empty.")
    return parameter


def integer(text: str) -> int:
    """Parse an integer literal.

    Raises:
        DatastoreError: INVALID_ARGUMENT if it does not fit into 64 bits.
    """
    number = whole_number(text, least=-(2**63), most=2**63 - 1)
    if number is None:
        raise gql_error(f"the integer {text[:40]} is out of range.")
    return number


def blob(text: str) -> ValuePb:
    """Parse a `BLOB(…)`: web-safe base64, whose padding may be missing."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _malformed("blob", text) from None
    return Value(blob_value=raw)


def date(text: str) -> ValuePb:
    """Parse a `DATETIME(…)`: a time as in RFC 3339, to the microsecond."""
    match = _DATETIME.fullmatch(text)
    if match is None:
        raise _malformed("date", text)
    day, clock, fraction, offset = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{offset.upper()}")
        seconds = (moment - _EPOCH) // (datetime.resolution * MICROSECONDS)
    except (ValueError, OverflowError):
        raise _malformed("date", text) from None
    micros = int((fraction or "0").ljust(6, "0")[:6])
    return Value(timestamp_value=timestamp(seconds * MICROSECONDS + micros))


def new_key(partition: Partition, project: str | None, namespace: str | None) -> KeyPb:
    """Return the message for a `KEY(…)`, still without a path."""
    key = Value().key_value
    key.partition_id.project_id = partition.project if project is None else project
    key.partition_id.database_id = partition.database
    key.partition_id.namespace_id = partition.namespace if namespace is None else namespace
    return key


def _malformed(what: str, text: str) -> DatastoreError:
    return gql_error(f"{text!r} is not a {what}.")
