"""A CommitRequest becomes a plan, and the answers become outcomes. Knows nothing of ndb.

A plan is a generator. It yields the `Call`s that are to be made at once (or a
`Wait`), is sent the answers, and returns a `Result`.

Outside of transactions (for these see `transaction_commits`), the mutations of
one request go in up to three commits side by side:

- `_Part`: changes and deletes, with the `base_version` of their read. Datastore
  skips the mutations that conflict, and applies the others.
- `_Inserts`: new entities under keys of their own, in a single-use transaction: all
  or none. If one of them exists, each is sent again by itself.
- `_NewIds`: new entities whose ids Datastore allocates. A second copy would meet
  no conflict, so they are not sent again while they may have landed.

A commit whose reply is lost is sent again, and may meet its own write. A write
id, a value that no other write has, recognises that:

    first attempt    base_version 7 ──▶ v8      the reply is lost
    second attempt   base_version 7 ──▶ conflict: there is v8
    look-up          v8 has the write id of this write: it has landed
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Mapping, Sequence
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

_CommitRequest: Any = datastore_types.CommitRequest
_CommitResponse: Any = datastore_types.CommitResponse
_LookupRequest: Any = datastore_types.LookupRequest


class Write(Protocol):
    """The facts about one watched write that a plan needs. The plan changes only `doubtful`."""

    base_version: int  # the version that Datastore must still have; 0 for any
    read_version: int  # the version that the object stands for; 0 if unknown
    must_be_new: bool  # the entity must not exist
    may_overwrite: bool  # it is overwritten all the same if it exists
    write_id: tuple[str, int] | None  # the property that recognises the write, and its value
    new_id: bool  # Datastore allocates the id of the entity
    doubtful: bool  # an earlier attempt of the write may have been applied


class Call(NamedTuple):
    """One RPC: its name in snake case, and the (raw) request."""

    rpc: str
    request: Any


class Wait(NamedTuple):
    """A pause before the next call."""

    seconds: float


class Answer(NamedTuple):
    """The outcome of a call: the (raw) response, or the error."""

    response: Any
    error: Exception | None


Steps = Generator["list[Call] | Wait", "list[Answer]", Any]


# --- outcomes -------------------------------------------------------------------------------


class Landed(NamedTuple):
    """The write is in Datastore, as this version. `overwrote`: it replaced an unread entity."""

    version: int
    overwrote: bool = False


class Refused(NamedTuple):
    """Datastore has another version than the write builds on (0: it did not say which)."""

    found_version: int
    may_have_landed: bool = False


class InDoubt(NamedTuple):
    """The write may have been applied, or not."""

    cause: Exception


Outcome = Landed | Refused | InDoubt


class Result(NamedTuple):
    """The outcome of a request, and of its mutations by index."""

    response: Any  # Datastore's (raw) answer; blank for mutations that have not landed
    outcomes: dict[int, Outcome]  # of each watched mutation that is settled
    errors: dict[int, Exception]  # of each mutation that is not settled
    error: Exception | None  # of the whole request; None if none of its commits failed


def may_have_landed(error: BaseException | None) -> bool:
    """Return whether a commit that ends with this error may have been applied all the same."""
    return isinstance(error, DOUBTFUL)


def is_transient(error: BaseException | None) -> bool:
    """Return whether ndb sends a request again that ends with this error."""
    return isinstance(error, (*DOUBTFUL[:3], errors.Aborted))


# --- mutations ------------------------------------------------------------------------------


def entity_of(mutation: Any) -> Any:
    """Return the entity in a (raw) mutation, or the key in a delete."""
    return getattr(mutation, mutation.WhichOneof("operation"))


def key_of(mutation: Any) -> Any:
    """Return the (raw) key of a (raw) mutation."""
    operation = mutation.WhichOneof("operation")
    found = getattr(mutation, operation)
    return found if operation == "delete" else found.key


def kind_of(key: Any) -> str:
    """Return the kind of a (raw) key; empty if it has no path."""
    path = key.path
    return path[-1].kind if path else ""


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
    """Return whether a mutation is a delete."""
    found: bool = mutation.HasField("delete")
    return found


def is_complete(key: Any) -> bool:
    """Return whether a (raw) key has an id or a name."""
    return bool(key.path) and key.path[-1].WhichOneof("id_type") is not None


def name_of(key: Any) -> bytes:
    """Return the same bytes for the same (raw) key."""
    name: bytes = key.SerializeToString(deterministic=True)
    return name


def build_on(mutation: Any, write: Write) -> None:
    """Write into a mutation the version that it builds on."""
    if write.base_version:
        mutation.base_version = write.base_version


def turn(mutation: Any, operation: str, into: str) -> None:
    """Turn an upsert into an insert, or an insert into an upsert."""
    if mutation.HasField(operation):
        entity = getattr(mutation, operation)
        copy = type(entity)()
        copy.CopyFrom(entity)
        getattr(mutation, into).CopyFrom(copy)


def put_write_id(mutation: Any, write: Write) -> None:
    """Write the write id into the entity of a mutation, if it has one."""
    if write.write_id is not None and not deletes(mutation):
        name, value = write.write_id
        entity_of(mutation).properties[name].integer_value = value


# --- look-ups -------------------------------------------------------------------------------


class Looked(NamedTuple):
    """Results of look-ups, by the key's name. A missing entity has its snapshot's version."""

    found: dict[bytes, Any]
    missing: dict[bytes, int]


def look_up(request: Any, keys: Sequence[Any], transaction: bytes = b"") -> Steps:
    """Look entities up, in the project and database that a request is for. Returns `Looked`.

    Raises:
        GoogleAPIError: there is no answer. A look-up in an aborted transaction is not repeated.
    """
    looked = Looked({}, {})
    left = list(keys)
    attempts = 0
    while left:
        lookup = _LookupRequest.pb(_LookupRequest())
        lookup.project_id, lookup.database_id = request.project_id, request.database_id
        lookup.keys.extend(left[:_MAX_LOOKUP_KEYS])
        if transaction:
            lookup.read_options.transaction = transaction
        ((response, error),) = yield [Call("lookup", lookup)]
        if error is not None:
            if not isinstance(error, DOUBTFUL):
                raise error
            attempts += 1
            if attempts == _LOOKUP_ATTEMPTS:
                # Not transient: ndb would run a whole transaction again for it.
                raise errors.RetryError(f"a look-up failed {attempts} times", cause=error)
            yield Wait(RESEND_DELAYS[0])
            continue
        for each in response.found:
            looked.found[name_of(each.entity.key)] = each
        for each in response.missing:
            looked.missing[name_of(each.entity.key)] = int(each.version)
        left = [*response.deferred, *left[_MAX_LOOKUP_KEYS:]]
    return looked


def has_write_id(write: Write | None, entity: Any) -> bool:
    """Return whether this write has stored a (raw) entity."""
    if write is None or write.write_id is None:
        return False
    name, value = write.write_id
    return name in entity.properties and entity.properties[name].integer_value == value


def is_same(entity: Any, other: Any) -> bool:
    """Return whether two (raw) entities have the same properties."""
    mine, others = entity.properties, other.properties
    return len(mine) == len(others) and all(
        name in others and mine[name] == others[name] for name in mine
    )


def version_if_same(result: Any, mutation: Any) -> int:
    """Return the version of a stored entity, 0 if it has changed since this put."""
    return int(result.version) if is_same(result.entity, entity_of(mutation)) else 0


# --- outside of transactions ----------------------------------------------------------------


class _Part:
    """Mutations of one request that are sent in one commit."""

    def __init__(self, commit: PlainCommit, indexes: Sequence[int]) -> None:
        self.commit = commit
        self.indexes = indexes
        #: The error of its last attempt.
        self.error: Exception | None = None

    def request(self) -> Any:
        """Return the commit of this part."""
        self.error = None
        commit = self.commit
        request = commit.request
        if len(self.indexes) < len(commit.mutations):
            request = type(commit.request)()
            request.project_id = commit.request.project_id
            request.database_id = commit.request.database_id
            request.mode = _CommitRequest.Mode.NON_TRANSACTIONAL
            request.mutations.extend([commit.mutations[index] for index in self.indexes])
        for index, mutation in zip(self.indexes, request.mutations, strict=True):
            write = commit.writes[index]
            if write is not None:
                self.fence(mutation, write)
        return request

    def fence(self, mutation: Any, write: Write) -> None:
        """Write into a mutation the conditions that Datastore checks."""
        build_on(mutation, write)

    def take(self, answer: Answer) -> Steps:
        """Take the answer. Returns the parts that are to be sent next."""
        self.error = answer.error
        if answer.error is None:
            refused = self.commit.take_answer(self.indexes, answer.response)
            if refused:
                yield from self.refuse(refused)
        elif may_have_landed(answer.error):
            for index in self.indexes:
                write = self.commit.writes[index]
                if write is not None:
                    write.doubtful = True
        return []

    def refuse(self, refused: dict[int, int]) -> Steps:
        """Settle the mutations that were refused because of Datastore's version.

        A write that has met itself has landed. So has a delete of an entity that is gone.
        """
        commit = self.commit
        uncertain = [
            index
            for index in refused
            if deletes(commit.mutations[index]) or self._is_doubtful(index)
        ]
        looked = Looked({}, {})
        if uncertain:
            keys = [key_of(commit.mutations[index]) for index in uncertain]
            with contextlib.suppress(errors.GoogleAPIError):  # it remains uncertain then
                looked = yield from look_up(commit.request, keys)
        for index, version in refused.items():
            mutation, write = commit.mutations[index], commit.writes[index]
            name = name_of(key_of(mutation))
            if deletes(mutation) and name in looked.missing:
                commit.settle(index, Landed(looked.missing[name]))
            elif name in looked.found and has_write_id(write, looked.found[name].entity):
                commit.settle(index, Landed(version_if_same(looked.found[name], mutation)))
            else:
                commit.settle(index, Refused(version, self._is_doubtful(index)))

    def _is_doubtful(self, index: int) -> bool:
        write = self.commit.writes[index]
        return write is not None and write.doubtful


class _NewIds(_Part):
    """New entities under ids that Datastore allocates: never sent again while in doubt."""

    def take(self, answer: Answer) -> Steps:
        if may_have_landed(answer.error):
            assert answer.error is not None
            for index in self.indexes:
                self.commit.settle(index, InDoubt(answer.error))
            return []
        more: list[_Part] = yield from super().take(answer)
        return more


class _Inserts(_Part):
    """New entities under keys of their own, in one commit: all or none."""

    def request(self) -> Any:
        request = super().request()
        request.mode = _CommitRequest.Mode.TRANSACTIONAL
        request.single_use_transaction.read_write.SetInParent()
        return request

    def fence(self, mutation: Any, write: Write) -> None:
        super().fence(mutation, write)
        turn(mutation, "upsert", "insert")

    def take(self, answer: Answer) -> Steps:
        if isinstance(answer.error, errors.AlreadyExists):
            if len(self.indexes) > 1:
                return [_Inserts(self.commit, [index]) for index in self.indexes]
            more: list[_Part] = yield from self._exists(self.indexes[0])
            return more
        if isinstance(answer.error, errors.InvalidArgument) and len(self.indexes) > MAX_GROUPS:
            return [
                _Inserts(self.commit, self.indexes[begin : begin + MAX_GROUPS])
                for begin in range(0, len(self.indexes), MAX_GROUPS)
            ]
        more = yield from super().take(answer)
        return more

    def _exists(self, index: int) -> Steps:
        write = self.commit.writes[index]
        assert write is not None
        yield from self.refuse({index: 0})
        if write.may_overwrite and isinstance(self.commit.outcomes[index], Refused):
            del self.commit.outcomes[index]
            return [_Overwrite(self.commit, [index])]
        return []


class _Overwrite(_Part):
    """A creation of an existing entity, where that only causes a warning: an upsert after all."""

    def fence(self, mutation: Any, write: Write) -> None:
        super().fence(mutation, write)
        turn(mutation, "insert", "upsert")

    def take(self, answer: Answer) -> Steps:
        more = yield from super().take(answer)
        for index in self.indexes:
            outcome = self.commit.outcomes.get(index)
            if isinstance(outcome, Landed):
                self.commit.outcomes[index] = outcome._replace(overwrote=True)
        return more


class PlainCommit:
    """One request outside of transactions, sent until each of its mutations is settled.

    Args:
        request: a (raw) CommitRequest of the plan's own, without tickets.
        writes: the watched write of each mutation; None for a mutation of another kind.
        skipped: the mutations that are not sent.
    """

    def __init__(
        self, request: Any, writes: Sequence[Write | None], skipped: Collection[int] = ()
    ) -> None:
        self.request = request
        self.mutations = request.mutations
        self.writes = writes
        self.outcomes: dict[int, Outcome] = {}
        self._results: dict[int, Any] = {}
        self._answers: list[Any] = []
        parts: dict[type[_Part], list[int]] = {_Part: [], _Inserts: [], _NewIds: []}
        for index, (mutation, write) in enumerate(zip(self.mutations, writes, strict=True)):
            kind = _Part
            if index in skipped:
                continue
            if write is not None:
                put_write_id(mutation, write)
                if write.must_be_new:
                    kind = _Inserts
                elif write.new_id and not deletes(mutation):
                    kind = _NewIds
            parts[kind].append(index)
        #: The mutations that are not settled yet.
        self._parts = [kind(self, indexes) for kind, indexes in parts.items() if indexes]

    def steps(self) -> Steps:
        """Send the mutations that are not settled yet, once. Returns a `Result`."""
        left: list[_Part] = []
        todo = self._parts
        while todo:
            answers = yield [Call("commit", each.request()) for each in todo]
            parts, todo = todo, []
            for part, answer in zip(parts, answers, strict=True):
                more = yield from part.take(answer)
                todo += more
                if part.error is not None and not more:
                    left.append(part)
        self._parts = left
        failed = {
            index: part.error
            for part in left
            for index in part.indexes
            if index not in self.outcomes and part.error is not None
        }
        # Preferably one for which ndb sends the request again.
        error = next(filter(is_transient, failed.values()), next(iter(failed.values()), None))
        response = put_together(self._answers, self._results, len(self.writes))
        return Result(response, self.outcomes, failed, error)

    def settle(self, index: int, outcome: Outcome) -> None:
        """Note the outcome of a mutation, if it is a watched one."""
        if self.writes[index] is not None:
            self.outcomes[index] = outcome

    def take_answer(self, indexes: Sequence[int], response: Any) -> dict[int, int]:
        """Take the answer of one commit. Returns the conflicts, each with Datastore's version."""
        self._answers.append(response)
        refused: dict[int, int] = {}
        for index, result in zip(indexes, response.mutation_results, strict=False):
            if result.conflict_detected:
                refused[index] = result.version
            else:
                self._results[index] = result
                self.settle(index, Landed(result.version))
        return refused


def put_together(answers: Sequence[Any], results: Mapping[int, Any], count: int) -> Any:
    """Return one answer for so many mutations; blank for those without a result."""
    if len(answers) == 1 and len(results) == count:
        return answers[0]
    response = _CommitResponse.pb(_CommitResponse())
    for answer in answers:
        response.index_updates += answer.index_updates
        if answer.HasField("commit_time"):
            response.commit_time.CopyFrom(answer.commit_time)
    for index in range(count):
        response.mutation_results.add()
        if index in results:
            response.mutation_results[index].CopyFrom(results[index])
    return response
