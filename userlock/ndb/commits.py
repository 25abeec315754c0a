"""A CommitRequest becomes a plan, and the answers become outcomes. Knows nothing of ndb.

A plan is a generator. It yields the `Call`s that are to be made at once, or seconds to wait,
is sent the answers, and returns a `Result`. A commit whose reply is lost is sent again, and
may meet its own write. A write id, a value that no other write has, recognises that:

    first attempt    base_version 7 ──▶ v8      the reply is lost
    second attempt   base_version 7 ──▶ conflict: there is v8
    look-up          v8 has the write id of this write: it has landed
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from google.api_core import exceptions as errors
from google.cloud.datastore_v1.types import datastore as datastore_types

log = logging.getLogger(__name__)

#: A commit that ends with one of these may have been applied all the same.
DOUBTFUL = (
    errors.ServiceUnavailable,
    errors.InternalServerError,
    errors.Unknown,
    errors.GatewayTimeout,  # DEADLINE_EXCEEDED
    errors.Cancelled,
)

#: The answers to the second copy of a commit, which the network may send: the transaction is over,
#: or the entity exists.
_OF_A_COPY = errors.InvalidArgument, errors.AlreadyExists

MAX_GROUPS = 25  # the legacy mode of concurrency allows a transaction no more entity groups

#: Before the end of a transaction is sent again, in seconds; with jitter.
RESEND_DELAYS = (0.1, 0.4, 1.6)

_MAX_LOOKUP_KEYS = 1000
_LOOKUP_ATTEMPTS = 3

_MOST_CLAIMING = 100  # the mutations of one transaction with claims
#: Before such a transaction is tried again, in seconds; with jitter.
_CLAIM_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.4)

_messages: Any = datastore_types
_CommitResponse: Any = _messages.CommitResponse.pb()
_Mode: Any = _messages.CommitRequest.Mode
_NO_RESULT: Any = _messages.MutationResult.pb()()


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
    further: Any  # the module that looks after them: `userlock.constraints.claims`

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
    return bool(mutation.HasField("delete"))


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

    `begin`: in a new transaction, whose id the request gets. Raises GoogleAPIError.
    """
    looked = Looked({}, {})
    left = list({name_of(key): key for key in keys}.values())
    attempts = 0
    while left:
        lookup = _request_like(request, _messages.LookupRequest, keys=left[:_MAX_LOOKUP_KEYS])
        if transaction:
            lookup.read_options.transaction = transaction
        elif begin:
            lookup.read_options.new_transaction.read_write.SetInParent()
        response = None
        try:
            ((response, error),) = yield [Call("lookup", lookup)]
            if error is not None:
                attempts += 1
                if isinstance(error, DOUBTFUL) and attempts < _LOOKUP_ATTEMPTS:
                    yield RESEND_DELAYS[0]
                    continue
                if isinstance(error, DOUBTFUL):
                    # Not transient: ndb would run a whole transaction again for it.
                    raise errors.RetryError(f"a look-up failed {attempts} times", cause=error)
                raise error
            if begin and not transaction:
                transaction = request.transaction = response.transaction
        except BaseException:  # as of a signal, at any line: the caller rolls back what has begun
            if begin and not transaction and response is not None:
                request.transaction = response.transaction
            raise
        for each in response.found:
            looked.found[name_of(each.entity.key)] = each
        for each in response.missing:
            looked.missing[name_of(each.entity.key)] = int(each.version)
        left = [*response.deferred, *left[_MAX_LOOKUP_KEYS:]]
    return looked._replace(transaction=transaction)


def _roll_back(request: Any) -> Steps:
    """End the transaction of a request, if it has begun."""
    if request.transaction:
        ended = {"transaction": request.transaction}
        yield from roll_back(_request_like(request, _messages.RollbackRequest, **ended))


def roll_back(request: Any) -> Steps:
    """Roll a transaction back, again after a transient error: what it has read stays locked until
    then, or for a minute. No error is raised: ndb would raise it instead of the reason for this."""
    for delay in (*RESEND_DELAYS, None):
        ((_, error),) = yield [Call("rollback", request)]
        if delay is None or not is_transient(error):
            break
        yield delay * random.uniform(0.5, 1)
    if error is not None:
        log.debug("a rollback failed", exc_info=error)


def _request_like(request: Any, kind: Any, **fields: Any) -> Any:
    """Return a (raw) request of another kind, for the same database."""
    return kind.pb()(project_id=request.project_id, database_id=request.database_id, **fields)


def allocate_ids(request: Any, mutations: Iterable[Any]) -> Steps:
    """Allocate the ids of new entities, for their rows and objects. Returns the error, if any."""
    keys = [key for key in map(key_of, mutations) if not is_complete(key)]
    if not keys:
        return None
    allocate = _request_like(request, _messages.AllocateIdsRequest, keys=keys)
    ((response, error),) = yield [Call("allocate_ids", allocate)]
    if error is None:
        for key, allocated in zip(keys, response.keys, strict=True):
            key.CopyFrom(allocated)
    return error


class Pair(NamedTuple):
    """A watched mutation, its position in the request, and the name of its key."""

    position: int
    mutation: Any
    write: Write
    name: Name


def build_on(mutation: Any, write: Write) -> None:
    if write.base_version:
        mutation.base_version = write.base_version


def _turn_into_insert(mutation: Any) -> None:
    if mutation.HasField("upsert"):
        copy = type(mutation.upsert)()
        copy.CopyFrom(mutation.upsert)
        mutation.insert.CopyFrom(copy)


def _put_write_id(mutation: Any, name: str, value: int) -> None:
    entity_of(mutation).properties[name].integer_value = value


def _has_write_id(write: Write, entity: Any) -> bool:
    if write.write_id is None:
        return False
    name, value = write.write_id
    return name in entity.properties and entity.properties[name].integer_value == value


def _is_same(stored: Any, mutation: Any) -> bool:
    return bool(stored.properties == entity_of(mutation).properties)


def _version_if_same(result: Any, mutation: Any) -> int:
    """Return the version of a stored entity, 0 if it has changed since this put."""
    return int(result.version) if _is_same(result.entity, mutation) else 0


# --- transactions ---------------------------------------------------------------------------


class TransactionCommit:
    """The commit of a transaction: all or nothing, and at most once.

    Entities that were read before the transaction are looked up in it, so that a change is
    reported as a stale write and not as contention. So are the claims that it changes, whose rows
    it writes as well. After a lost reply the same commit is sent again. If Datastore does not know
    the transaction any longer, the stored entities tell whether it was applied:

        commit ──▶ applied          the reply is lost
        commit again, the same transaction: Datastore commits it at most once
                   ──▶ done                   it had not arrived; now it has
                   ──▶ no longer valid        it is over: applied, or given up
        look-up    the write id of one of its writes, or an entity under an id that
                   was allocated for it, is there: it was applied
                   an entity that it was to change is unchanged: it was not applied
                   neither: it remains in doubt, and the caller gets that error

    Args:
        request: a (raw) CommitRequest of the plan's own, without tickets. Without a transaction,
            the first look-up begins one, and each mutation may be refused by itself.
        writes: the watched write of each mutation; None for a mutation of another kind.
        skipped: the mutations that are not sent.
    """

    def __init__(
        self, request: Any, writes: Sequence[Write | None], skipped: Collection[int] = ()
    ) -> None:
        self._request, self._writes = request, writes
        self._separately = not request.transaction
        self._outcomes: dict[int, Outcome] = {}
        self._sent = list(range(len(writes)))
        self._allocated: list[int] = []  # the positions of those whose ids were allocated here
        self._arrange(skipped)

    def _arrange(self, skipped: Collection[int]) -> None:
        """Take the mutations out that are not sent, and arrange the others."""
        for index in reversed(range(len(self._sent))) if skipped else ():
            if self._sent[index] in skipped:
                del self._request.mutations[index], self._sent[index]
        self._watched: list[Pair] = []
        self._new: list[int] = []  # the positions of new entities that have no id yet
        #: The first mutation of each entity, which builds on the stored entity, and the last one.
        self._firsts: dict[Name, Pair] = {}
        self._lasts: dict[Name, Pair] = {}
        for position, mutation in zip(self._sent, self._request.mutations, strict=True):
            write, name = self._writes[position], name_of(key_of(mutation))
            if len(name) % 2 == 0:
                self._new.append(position)
            elif write is not None:
                pair = Pair(position, mutation, write, name)
                self._watched.append(pair)
                self._firsts.setdefault(name, pair)
                self._lasts[name] = pair
        #: The last mutations that change claims. Those before them count for nothing.
        self._claiming = [each for each in self._lasts.values() if each.write.rows is not None]
        self._further: Any = self._claiming[0].write.further if self._claiming else None

    def steps(self) -> Steps:
        """Check the earlier reads, commit, and find out the outcome. Returns a `Result`."""
        del self._request.mutations[len(self._sent) :]  # the rows of an earlier attempt
        if self._new:  # nobody has waited for these puts in their transaction
            error = yield from allocate_ids(self._request, self._request.mutations)
            if error is not None:
                return Result(None, {}, {}, error)
            self._allocated = self._new
            self._arrange(())
        transaction = self._request.transaction
        keys = [key_of(each.mutation) for each in self._watched if each.write.base_version]
        looked: Looked = yield from self._look_up(keys, transaction, begin=self._separately)
        landed: list[Landed] | None = None
        if self._separately and any(each.write.doubtful for each in self._watched):
            landed = self._applied(looked)
            if landed is not None:  # by an earlier attempt
                yield from _roll_back(self._request)
        while landed is None and (refused := self._find_refused(looked)):
            self._outcomes |= refused
            if self._separately:
                self._arrange(refused)
            if not (self._separately and self._watched):
                return Result(None, self._outcomes, {}, None)
        if landed is None:
            commit = Call("commit", self._commit(looked), self._lands_once())
            ((response, error),) = yield [commit]
            if error is None:
                landed = _landed(response)
            elif may_have_landed(error):
                landed, in_doubt = yield from self._resend(commit)
                if in_doubt and self._watched:
                    self._outcomes[self._watched[0].position] = InDoubt(error)
                    return Result(None, self._outcomes, {}, error)
            elif isinstance(error, _OF_A_COPY) and any(map(_is_marked, self._lasts.values())):
                landed, _ = yield from self._find_out(doubtful=False)
        if landed is None:
            new = [each for each in self._firsts.values() if each.write.must_be_new]
            if not new or not isinstance(error, errors.AlreadyExists):
                return Result(None, self._outcomes, {}, error)
            if len(new) > 1:  # Datastore's error does not tell which of them exists
                with contextlib.suppress(errors.GoogleAPIError):
                    looked = yield from look_up(self._request, [key_of(e.mutation) for e in new])
                    new = [each for each in new if each.name in looked.found] or new
            return Result(None, self._outcomes | {new[0].position: Refused(0)}, {}, None)
        whole = _CommitResponse(mutation_results=[_NO_RESULT] * len(self._writes))
        for position, outcome in zip(self._sent, landed, strict=False):
            whole.mutation_results[position].version = outcome.version
            self._outcomes[position] = outcome
        for position in self._allocated:  # all mutations of a transaction are sent
            whole.mutation_results[position].key.CopyFrom(key_of(self._request.mutations[position]))
        return Result(whole, self._outcomes, {}, None)

    def _commit(self, looked: Looked) -> Any:
        for each in self._watched:
            if each.write.write_id is not None:
                _put_write_id(each.mutation, *each.write.write_id)
            if each.write.must_be_new and self._firsts.get(each.name) is each:
                _turn_into_insert(each.mutation)
        if self._further is not None:
            self._request.mutations.extend(self._further.changes(self._claiming, looked))
        return self._request

    def _lands_once(self) -> bool:
        """Return whether a second copy is refused: it inserts what is still there by then."""
        for each in self._firsts.values():
            new = each.write.must_be_new and each.write.stays and each.write.write_id is not None
            if new and self._lasts[each.name] is each:
                return True
        return False

    def _look_up(self, keys: list[Any], transaction: bytes = b"", *, begin: bool = False) -> Steps:
        """Look up these entities, and what decides about claims."""
        if self._further is not None:
            keys += self._further.expected_keys(self._claiming)
        elif not keys:
            return Looked({}, {}, transaction)
        looked = yield from look_up(self._request, keys, transaction, begin=begin)
        if self._further is not None:
            yield from self._further.look_further(self._request, self._claiming, looked)
        return looked

    def _find_refused(self, looked: Looked) -> dict[int, Outcome]:
        """Find mutations that are refused: their reads are outdated, or others have their values.
        One of them, unless each may be refused by itself."""
        refused: dict[int, Outcome] = {}
        for each in self._watched:
            if each.write.base_version or self._separately:
                outcome = self._refusal_of(each, looked)
                if outcome is not None:
                    refused[each.position] = outcome
        if self._further is not None and not refused:
            refused |= self._further.find_taken(self._claiming, looked)
        return refused if self._separately else dict([*refused.items()][:1])

    def _refusal_of(self, pair: Pair, looked: Looked) -> Outcome | None:
        # Datastore would refuse a `base_version` too, but as contention: ndb would run the function
        # again and again, each time with the same old object.
        _, mutation, write, name = pair
        if self._separately and not write.guarded:
            return Unguarded(write.doubtful)
        if not write.base_version:
            exists = name in looked.found and self._firsts.get(name) is pair
            return Refused(0, write.doubtful) if exists and write.must_be_new else None
        if name in looked.found:
            version = int(looked.found[name].version)
        elif deletes(mutation):
            return None  # it is gone, as it should be
        else:
            # A missing entity has the snapshot's version. A later one than that of the read means
            # that it was deleted.
            version = looked.missing.get(name, 0)
        # An earlier one means that the transaction began before the read. Its commit is refused as
        # contention, and the next attempt sees the entity.
        return Refused(version, write.doubtful) if not 0 < version <= write.base_version else None

    def _resend(self, commit: Call) -> Steps:
        """Commit again: Datastore commits a transaction at most once. Returns as `_find_out`."""
        for delay in RESEND_DELAYS:
            yield delay * random.uniform(0.5, 1)
            if not all(each.write.guarded for each in self._watched):
                return None, True
            ((response, error),) = yield [commit]
            if error is None:
                return _landed(response), False
            if not may_have_landed(error):
                break
        else:
            return None, True  # the first request may still be on its way
        return (yield from self._find_out())

    def _find_out(self, *, doubtful: bool = True) -> Steps:
        """Look up what is stored. Returns what has landed, if that proves that the commit was
        applied, and whether it is in doubt."""
        keys = [key_of(each.mutation) for each in self._lasts.values()]
        try:
            looked: Looked = yield from self._look_up(keys)
        except errors.GoogleAPIError:
            return None, True
        landed = self._applied(looked, doubtful=doubtful)
        unchanged = any(_is_unchanged(each, looked) for each in self._lasts.values())
        return landed, landed is None and not unchanged

    def _applied(self, looked: Looked, *, doubtful: bool = True) -> list[Landed] | None:
        """Return what has landed by a commit that look-ups prove to have been applied, or None.

        `doubtful`: a reply was lost. Otherwise others may have done what it was to do, and only a
        mark of its own proves it.
        """
        lasts = self._lasts.values()
        proofs = [self._version_proving(each, looked, doubtful) for each in lasts]
        versions = [version for version in proofs if version is not None]
        names = {name_of(key_of(each)) for each in self._request.mutations[: len(self._sent)]}
        # It has deleted existing entities, and nothing else, and all are gone.
        all_gone = names == self._lasts.keys() and all(
            deletes(each.mutation) and each.write.read_version > 0 and each.name in looked.missing
            for each in lasts
        )
        if not versions and not (doubtful and lasts and all_gone):
            return None
        landed = []
        for mutation in self._request.mutations:
            # One version for all writes of a commit; but an entity that was put unchanged keeps its
            # version.
            version, found = max(versions, default=0), looked.found.get(name_of(key_of(mutation)))
            if found is not None and not deletes(mutation):
                version = _version_if_same(found, mutation) or version
            landed.append(Landed(version, overtaken=not version))
        return landed

    def _version_proving(self, pair: Pair, looked: Looked, doubtful: bool) -> int | None:
        """Return the version of a write that is found, 0 if its entity has changed since."""
        _, mutation, write, name = pair
        result = looked.found.get(name)
        if result is None or deletes(mutation):
            return None
        own = (
            # Nobody else knows an id that Datastore has allocated for this attempt.
            (doubtful and write.new_id)
            or _has_write_id(write, result.entity)
            or (write.rows is not None and write.further.has_row_of(looked, pair))
        )
        return _version_if_same(result, mutation) if own else None


def _is_marked(pair: Pair) -> bool:
    """Return whether an entity or a row has a number that no other write has."""
    return pair.write.write_id is not None or pair.write.rows is not None


def _landed(response: Any) -> list[Landed]:
    return [Landed(int(each.version)) for each in response.mutation_results]


def _is_unchanged(pair: Pair, looked: Looked) -> bool:
    """Return whether the entity is as it was before the transaction."""
    _, mutation, write, name = pair
    result = looked.found.get(name)
    if result is None or not write.read_version:
        return False
    if not deletes(mutation) and _is_same(result.entity, mutation):
        return False  # an entity that is put unchanged keeps its version
    return int(result.version) == write.read_version


# --- outside of transactions ----------------------------------------------------------------


class PlainCommit:
    """One request outside of transactions, sent until each of its mutations is settled.

    Each mutation lands or is refused by itself. They go in up to three groups, the first two side
    by side:

    - Changes and deletes, with the `base_version` of their read. Datastore skips the mutations
      that conflict, and applies the others. Also new entities whose ids Datastore allocates: a
      second copy would meet no conflict, so they are not sent again while they may have landed.
    - New entities under keys of their own, in a single-use transaction: all or none. If one of
      them exists, each is sent again by itself.
    - Mutations that change claims, in a `TransactionCommit` of their own with the rows of those.
    """

    def __init__(
        self, request: Any, writes: Sequence[Write | None], skipped: Collection[int] = ()
    ) -> None:
        self._request, self._mutations = request, request.mutations
        self._writes, self._skipped = writes, skipped
        self._outcomes: dict[int, Outcome] = {}
        self._response = _CommitResponse(mutation_results=[_NO_RESULT] * len(writes))
        for mutation, write in zip(self._mutations, writes, strict=True):
            if write is not None and write.write_id is not None:
                _put_write_id(mutation, *write.write_id)

    def steps(self) -> Steps:
        """Send the mutations that are not settled yet, once. Returns a `Result`."""
        changes: list[int] = []
        creations: list[int] = []
        claiming: list[int] = []
        for index, write in enumerate(self._writes):
            if index in self._outcomes or index in self._skipped:
                continue
            if write is None:
                changes.append(index)
            elif not write.guarded:
                self._outcomes[index] = Unguarded(write.doubtful)
            elif write.rows is not None:
                claiming.append(index)
            else:
                (creations if write.must_be_new else changes).append(index)
        failed: dict[int, Exception] = {}
        todo = [group for group in (changes, creations) if group]
        while todo:
            answers = yield list(map(self._call_for, todo))
            groups, todo = todo, []
            for group, (response, error) in zip(groups, answers, strict=True):
                if error is None:
                    yield from self._take_answer(group, response)
                else:
                    todo += yield from self._take_error(group, error, failed)
        for begin in range(0, len(claiming), _MOST_CLAIMING):
            yield from self._claim(claiming[begin : begin + _MOST_CLAIMING], failed)
        # Preferably one for which ndb sends the request again.
        error = next(filter(is_transient, failed.values()), next(iter(failed.values()), None))
        return Result(self._response, self._outcomes, failed, error)

    def _left(self, group: list[int]) -> list[int]:
        """Return those of a group that are not settled."""
        return [each for each in group if each not in self._outcomes]

    def _call_for(self, group: list[int]) -> Call:
        whole = len(group) == len(self._mutations)
        request = self._request if whole else self._copied(group, _Mode.NON_TRANSACTIONAL)
        inserts = False
        for index, mutation in zip(group, request.mutations, strict=True):
            write = self._writes[index]
            if write is not None:
                build_on(mutation, write)
                if write.must_be_new:
                    inserts = True
                    _turn_into_insert(mutation)
        if inserts:
            request.mode = _Mode.TRANSACTIONAL
            request.single_use_transaction.read_write.SetInParent()
        return Call("commit", request)

    def _copied(self, group: list[int], mode: Any) -> Any:
        mutations = [self._mutations[index] for index in group]
        return _request_like(self._request, _messages.CommitRequest, mode=mode, mutations=mutations)

    def _take_answer(self, group: list[int], response: Any) -> Steps:
        self._response.index_updates += response.index_updates
        if response.HasField("commit_time"):
            self._response.commit_time.CopyFrom(response.commit_time)
        conflicts: dict[int, int] = {}
        for index, result in zip(group, response.mutation_results, strict=False):
            if result.conflict_detected:
                conflicts[index] = result.version
            else:
                self._response.mutation_results[index].CopyFrom(result)
                self._outcomes[index] = Landed(result.version)
        if conflicts:
            yield from self._refuse(conflicts)

    def _take_error(self, group: list[int], error: Exception, failed: Any) -> Steps:
        """Note the error of a group's commit. Returns the groups that are to be sent next."""
        first = self._writes[group[0]]
        creates = first is not None and first.must_be_new
        if creates and isinstance(error, errors.AlreadyExists):
            if len(group) > 1:
                return _halves(group)
            yield from self._refuse({group[0]: 0})
        elif creates and isinstance(error, errors.InvalidArgument) and len(group) > MAX_GROUPS:
            return _halves(group)
        elif may_have_landed(error):
            for index in group:
                write = self._writes[index]
                if write is not None:
                    write.doubtful = True
                    if write.new_id and not is_complete(key_of(self._mutations[index])):
                        self._outcomes[index] = InDoubt(error)
        failed |= dict.fromkeys(self._left(group), error)
        return []

    def _refuse(self, conflicts: dict[int, int]) -> Steps:
        """Settle mutations that were refused because of these versions in Datastore. A write that
        has met itself has landed. So has a delete of an entity that is gone."""
        looked = Looked({}, {})
        keys = [
            key_of(self._mutations[index])
            for index in conflicts
            if deletes(self._mutations[index])
            or getattr(self._writes[index], "write_id", None) is not None
        ]
        with contextlib.suppress(errors.GoogleAPIError):  # it remains uncertain then
            looked = yield from look_up(self._request, keys)
        for index, version in conflicts.items():
            mutation, write = self._mutations[index], self._writes[index]
            name = name_of(key_of(mutation))
            if write is None:
                continue
            if deletes(mutation) and name in looked.missing:
                self._outcomes[index] = Landed(looked.missing[name])
            elif name in looked.found and _has_write_id(write, looked.found[name].entity):
                found = _version_if_same(looked.found[name], mutation)
                self._outcomes[index] = Landed(found, overtaken=not found)
            else:
                self._outcomes[index] = Refused(version, write.doubtful)

    def _claim(self, group: list[int], failed: dict[int, Exception]) -> Steps:
        """Send mutations in one transaction with the rows of their claims. Datastore decides: what
        another one writes between the look-up and the commit aborts it."""
        mutations = [self._mutations[index] for index in group]
        error: Exception | None = yield from allocate_ids(self._request, mutations)
        for pause in (*_CLAIM_PAUSES, None) if error is None else ():
            error = yield from self._try_to_claim(group)
            group = self._left(group)
            if error is None or not group:
                return
            if isinstance(error, errors.InvalidArgument) and len(group) > 1:
                # There may be too many for one transaction.
                for half in _halves(group):
                    yield from self._claim(half, failed)
                return
            if pause is None or not is_transient(error):
                break
            yield pause * random.uniform(0.5, 1)
        if error is not None:
            failed |= dict.fromkeys(group, error)

    def _try_to_claim(self, group: list[int]) -> Steps:
        """Commit a group in a transaction. Returns the error, if there is one."""
        request = self._copied(group, _Mode.TRANSACTIONAL)
        writes = [self._writes[index] for index in group]
        try:
            result: Result = yield from TransactionCommit(request, writes).steps()
        except GeneratorExit:
            raise
        except BaseException as error:  # a signal's comes at any line
            result = Result(None, {}, {}, error)  # type: ignore[arg-type]
        if result.response is None and not isinstance(result.error, errors.Aborted):
            yield from _roll_back(request)  # Aborted has ended it
        for position, outcome in result.outcomes.items():
            index = group[position]
            if isinstance(outcome, InDoubt):
                for write in writes:
                    if write is not None:
                        write.doubtful = True  # the next look-up tells
                continue
            self._outcomes[index] = outcome
            if isinstance(outcome, Landed):
                landed = self._response.mutation_results[index]
                landed.version = outcome.version
                write = writes[position]
                if write is not None and write.new_id:
                    landed.key.CopyFrom(key_of(self._mutations[index]))
        return result.error


def _halves(group: list[int]) -> list[list[int]]:
    middle = len(group) // 2
    return [group[:middle], group[middle:]]
