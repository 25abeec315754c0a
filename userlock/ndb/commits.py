"""A CommitRequest becomes a plan, and the answers become outcomes. Knows nothing of ndb.

A plan is a generator. It yields the `Call`s that are to be made at once, or seconds to wait,
is sent the answers, and returns a `Result`. A commit whose reply is lost is sent again, and
may meet its own write. A write id, a value that no other write has, recognises that:

    first attempt    base_version 7 ──▶ v8      the reply is lost
    second attempt   base_version 7 ──▶ conflict: there is v8
    look-up          v8 has the write id of this write: it has landed
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from google.api_core import exceptions as errors
from google.cloud.datastore_v1.types import datastore as datastore_types

#: A commit that ends with one of these may have been applied all the same.
DOUBTFUL = (
    errors.ServiceUnavailable,
    errors.InternalServerError,
    errors.Unknown,
    errors.GatewayTimeout,  # DEADLINE_EXCEEDED
    errors.Cancelled,
)

#: The legacy mode of concurrency allows a transaction no more entity groups.
MAX_GROUPS = 25

#: Before a transaction's commit is sent again, in seconds; with jitter.
RESEND_DELAYS = (0.1, 0.4, 1.6)

_MAX_LOOKUP_KEYS = 1000
_LOOKUP_ATTEMPTS = 3

_LookupRequest: Any = datastore_types.LookupRequest
_RollbackRequest: Any = datastore_types.RollbackRequest


class Write(Protocol):
    """The facts about one watched write that a plan needs. The plan changes only `doubtful`."""

    base_version: int  # the version that Datastore must still have; 0 for any
    read_version: int  # the version that the object stands for; 0 if unknown
    must_be_new: bool  # the entity must not exist
    write_id: tuple[str, int] | None  # the property that recognises the write, and its value
    new_id: bool  # Datastore allocates the id of the entity
    doubtful: bool  # an earlier attempt of the write may have been applied
    stays: bool  # its entity is not deleted while a copy of its commit may be under way
    rows: Any  # the rows that change with it, for `further`; None if there are none
    further: Any  # looks after them: a `Further`

    @property
    def guarded(self) -> bool: ...  # whether Datastore, or a lock that is still held, protects it


class Call(NamedTuple):
    """One RPC: its name in snake case, and the (raw) request."""

    rpc: str
    request: Any
    lands_once: bool = False  # of a commit: Datastore refuses a second copy of it


class Answer(NamedTuple):
    """The outcome of a call: the (raw) response, or the error."""

    response: Any
    error: Exception | None


Steps = Generator["list[Call] | float", "list[Answer]", Any]


class Landed(NamedTuple):
    """The write is in Datastore."""

    version: int
    overtaken: bool = False  # its reply was lost, and the entity has been changed since


class Refused(NamedTuple):
    """Datastore has another version than the write builds on (0: it did not say which)."""

    found_version: int
    may_have_landed: bool = False


class InDoubt(NamedTuple):
    """The write may have been applied, or not."""

    cause: Exception


class Unguarded(NamedTuple):
    """The write was not sent, or not again, because it is no longer guarded."""

    may_have_landed: bool


class Taken(Protocol):
    """A row is another entity's. It makes the error of the write."""

    def error(self, **facts: Any) -> Exception: ...


Outcome = Landed | Refused | InDoubt | Unguarded | Taken


class Result(NamedTuple):
    """The outcome of a request, and of its mutations by index."""

    response: Any  # Datastore's (raw) answer; blank for mutations that have not landed
    outcomes: dict[int, Outcome]  # of each watched mutation that is settled
    errors: dict[int, Exception]  # of each mutation that is not settled
    error: Exception | None  # of the whole request; None if none of its commits failed


def may_have_landed(error: BaseException | None) -> bool:
    """Return whether a commit that ends with this error may have been applied all the same."""
    return isinstance(error, DOUBTFUL) and not hasattr(error, "_userlock_unsent")


def note_unsent(error: Exception) -> None:
    """Note with an error that the commit which ends with it was not sent."""
    error._userlock_unsent = True  # type: ignore[attr-defined]


def is_transient(error: BaseException | None) -> bool:
    """Return whether ndb sends a request again that ends with this error."""
    return isinstance(error, (*DOUBTFUL[:3], errors.Aborted))


def entity_of(mutation: Any) -> Any:
    """Return the entity in a (raw) mutation, or the key in a delete."""
    return getattr(mutation, mutation.WhichOneof("operation"))


def key_of(mutation: Any) -> Any:
    operation = mutation.WhichOneof("operation")
    found = getattr(mutation, operation)
    return found if operation == "delete" else found.key


def path_of(key: Any) -> tuple[Any, ...]:
    """Return kind, id, kind, id, ... of a (raw) key; the last id may be missing."""
    path: list[Any] = []
    for each in key.path:
        path.append(each.kind)
        which = each.WhichOneof("id_type")
        if which is not None:
            path.append(getattr(each, which))
    return tuple(path)


def deletes(mutation: Any) -> bool:
    found: bool = mutation.HasField("delete")
    return found


def is_complete(key: Any) -> bool:
    return bool(key.path) and key.path[-1].WhichOneof("id_type") is not None


#: Tells the entities of one request apart: the namespace, and the path of the key.
Name = tuple[Any, ...]


def name_of(key: Any) -> Name:
    return key.partition_id.namespace_id, *path_of(key)


class Looked(NamedTuple):
    """Results of look-ups by name. A missing entity has its snapshot's version."""

    found: dict[Name, Any]
    missing: dict[Name, int]
    transaction: bytes = b""


def look_up(
    request: Any, keys: Iterable[Any], transaction: bytes = b"", *, begin: bool = False
) -> Steps:
    """Look entities up, in the database that a request is for. Returns `Looked`.

    `begin`: in a new transaction, which is rolled back before an error (GoogleAPIError) is raised.
    """
    looked = Looked({}, {})
    left = list({name_of(key): key for key in keys}.values())
    attempts = 0
    while left:
        lookup = request_like(request, _LookupRequest)
        lookup.keys.extend(left[:_MAX_LOOKUP_KEYS])
        if transaction:
            lookup.read_options.transaction = transaction
        elif begin:
            lookup.read_options.new_transaction.read_write.SetInParent()
        ((response, error),) = yield [Call("lookup", lookup)]
        if error is not None:
            attempts += 1
            if isinstance(error, DOUBTFUL) and attempts < _LOOKUP_ATTEMPTS:
                yield RESEND_DELAYS[0]
                continue
            if begin:
                yield from roll_back(request, transaction)
            if isinstance(error, DOUBTFUL):
                # Not transient: ndb would run a whole transaction again for it.
                raise errors.RetryError(f"a look-up failed {attempts} times", cause=error)
            raise error
        transaction = transaction or response.transaction
        for each in response.found:
            looked.found[name_of(each.entity.key)] = each
        for each in response.missing:
            looked.missing[name_of(each.entity.key)] = int(each.version)
        left = [*response.deferred, *left[_MAX_LOOKUP_KEYS:]]
    return looked._replace(transaction=transaction)


def roll_back(request: Any, transaction: bytes) -> Steps:
    """End a transaction, if there is one: the locks of one that writes nothing stay a minute."""
    if transaction:
        rollback = request_like(request, _RollbackRequest)
        rollback.transaction = transaction
        yield [Call("rollback", rollback)]


def request_like(request: Any, kind: Any) -> Any:
    """Return a (raw) request of another kind, for the same database."""
    made = kind.pb(kind())
    made.project_id, made.database_id = request.project_id, request.database_id
    return made


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before a transaction's commit is sent again."""
    for delay in RESEND_DELAYS:
        yield delay * random.uniform(0.5, 1)


class Pair(NamedTuple):
    """A watched mutation, its position in the request, and the name of its key."""

    position: int
    mutation: Any
    write: Write
    name: Name


class Further(Protocol):
    """Looks after the rows that change in the commit of their entity. Knows nothing of ndb.

    An entry of a model's `_unique` names, as its `rows_of_model`, a module that knows the model
    (`userlock.constraints.claims`). It gives each write its rows, and this. The keys of the
    mutations are complete. The nonce is a number in the rows of one commit.
    """

    def new_nonce(self) -> int: ...
    # The (raw) keys to look up first; then those that only this look-up tells:
    def expected_keys(self, pairs: Iterable[Pair]) -> Iterable[Any]: ...
    def look_further(self, request: Any, pairs: Sequence[Pair], looked: Looked) -> Steps: ...
    # The outcomes of the mutations that must not be committed, by position:
    def find_taken(self, pairs: Sequence[Pair], looked: Looked) -> Mapping[int, Any]: ...
    # The mutations of rows, if none of those is refused:
    def changes(self, pairs: Sequence[Pair], looked: Looked, nonce: int) -> Iterable[Any]: ...
    # Whether a commit with that nonce has given the mutation's entity a row:
    def has_row_of(self, looked: Looked, pair: Pair, nonce: int) -> bool: ...
