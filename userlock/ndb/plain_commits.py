"""The plan of a commit outside of transactions: each mutation lands or is refused by itself.

The mutations of one request go in up to three parts, the first two side by side:

- `_Part`: changes and deletes, with the `base_version` of their read. Datastore
  skips the mutations that conflict, and applies the others. Also new entities whose
  ids Datastore allocates: a second copy would meet no conflict, so they are not sent
  again while they may have landed.
- `_Inserts`: new entities under keys of their own, in a single-use transaction: all
  or none. If one of them exists, each is sent again by itself.
- `_Claims`: mutations that change which values an entity has alone, in a
  `TransactionCommit` of their own with the rows of the claims.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from google.api_core import exceptions as errors
from google.cloud.datastore_v1.types import datastore as datastore_types

from userlock.ndb.commits import (
    MAX_GROUPS,
    Call,
    InDoubt,
    Landed,
    Looked,
    Outcome,
    Refused,
    Result,
    Steps,
    Unguarded,
    Wait,
    Write,
    build_on,
    deletes,
    has_write_id,
    is_complete,
    is_transient,
    key_of,
    look_up,
    may_have_landed,
    name_of,
    put_together,
    put_write_id,
    roll_back,
    turn_into_insert,
    version_if_same,
)
from userlock.ndb.transaction_commits import TransactionCommit

_AllocateIdsRequest: Any = datastore_types.AllocateIdsRequest
_CommitRequest: Any = datastore_types.CommitRequest

#: The mutations of one transaction with claims.
_MOST_CLAIMING = 100
#: Before such a transaction is tried again, in seconds; with jitter.
_CLAIM_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.4)


class _Part:
    """Mutations of one request that are sent in one commit."""

    #: Whether its mutations are inserts.
    inserts = False

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
            request = commit.request_of(self.indexes)
        for index, mutation in zip(self.indexes, request.mutations, strict=True):
            write = commit.writes[index]
            if write is not None:
                build_on(mutation, write)
                if self.inserts:
                    turn_into_insert(mutation)
        return request

    def failed(self, error: Exception) -> list[_Part]:
        """Take the error of its commit. Returns the parts that are to be sent next."""
        self.error = error
        if may_have_landed(error):
            for index in self.indexes:
                write = self.commit.writes[index]
                if write is not None:
                    write.doubtful = True
                    if write.new_id and not is_complete(key_of(self.commit.mutations[index])):
                        self.commit.settle(index, InDoubt(error))
        return []

    def refused_by(self, error: Exception) -> dict[int, int]:
        """Return the conflicts that the error of its commit tells."""
        return {}

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
                found = version_if_same(looked.found[name], mutation)
                commit.settle(index, Landed(found, overtaken=not found))
            else:
                commit.settle(index, Refused(version, self._is_doubtful(index)))

    def _is_doubtful(self, index: int) -> bool:
        write = self.commit.writes[index]
        return write is not None and write.doubtful


class _Inserts(_Part):
    """New entities under keys of their own, in one commit: all or none."""

    inserts = True

    def request(self) -> Any:
        request = super().request()
        request.mode = _CommitRequest.Mode.TRANSACTIONAL
        request.single_use_transaction.read_write.SetInParent()
        return request

    def refused_by(self, error: Exception) -> dict[int, int]:
        alone = len(self.indexes) == 1 and isinstance(error, errors.AlreadyExists)
        return {self.indexes[0]: 0} if alone else {}

    def failed(self, error: Exception) -> list[_Part]:
        if isinstance(error, errors.AlreadyExists):
            return [_Inserts(self.commit, [index]) for index in self.indexes]
        if isinstance(error, errors.InvalidArgument) and len(self.indexes) > MAX_GROUPS:
            return [
                _Inserts(self.commit, self.indexes[begin : begin + MAX_GROUPS])
                for begin in range(0, len(self.indexes), MAX_GROUPS)
            ]
        return super().failed(error)


class _Claims:
    """Mutations that change claims, in one transaction with the rows of those.

    Datastore decides: what another one writes between the look-up and the commit aborts it.
    """

    def __init__(self, commit: PlainCommit, indexes: Sequence[int]) -> None:
        self.commit = commit
        self.indexes = list(indexes)
        self.error: Exception | None = None
        first = commit.writes[self.indexes[0]]
        assert first is not None
        self._nonce = first.further.new_nonce()
        #: The mutations whose keys were allocated here.
        self._allocated: list[int] = []

    def steps(self) -> Steps:
        """Send them. Returns the parts that are not settled, each with its error."""
        self.error = yield from self._allocate()
        if self.error is not None:
            return [self]
        for pause in (*_CLAIM_PAUSES, None):
            self.error = yield from self._try()
            if self.error is None:
                return []
            if isinstance(self.error, errors.InvalidArgument) and len(self.indexes) > 1:
                return (yield from self._halved())
            if pause is None or not is_transient(self.error):
                break
            yield Wait(pause * random.uniform(0.5, 1))
        return [self]

    def _halved(self) -> Steps:
        """Send them in two halves: there may be too many for one transaction."""
        middle = len(self.indexes) // 2
        left: list[_Claims] = []
        for indexes in (self.indexes[:middle], self.indexes[middle:]):
            half = _Claims(self.commit, indexes)
            half._allocated = [each for each in self._allocated if each in indexes]
            left += yield from half.steps()
        return left

    def _allocate(self) -> Steps:
        """Allocate the ids of new entities, for the rows. Returns the error, if there is one."""
        mutations = self.commit.mutations
        new = [each for each in self.indexes if not is_complete(key_of(mutations[each]))]
        if not new:
            return None
        request = _AllocateIdsRequest.pb(_AllocateIdsRequest())
        sent = self.commit.request
        request.project_id, request.database_id = sent.project_id, sent.database_id
        request.keys.extend([key_of(mutations[each]) for each in new])
        ((response, error),) = yield [Call("allocate_ids", request)]
        if error is None:
            for index, key in zip(new, response.keys, strict=True):
                key_of(mutations[index]).CopyFrom(key)
            self._allocated += new
        return error

    def _try(self) -> Steps:
        """Commit those that are left in a transaction. Returns the error, if there is one."""
        commit = self.commit
        self.indexes = [each for each in self.indexes if each not in commit.outcomes]
        if not self.indexes:
            return None
        request = commit.request_of(self.indexes)
        request.mode = _CommitRequest.Mode.TRANSACTIONAL
        writes = [commit.writes[index] for index in self.indexes]
        try:
            attempt = TransactionCommit(request, writes, nonce=self._nonce)
            result: Result = yield from attempt.steps()
        except errors.GoogleAPIError as error:
            result = Result(None, {}, {}, error)
        if result.response is None and not isinstance(result.error, errors.Aborted):
            yield from roll_back(request, request.transaction)  # Aborted has ended it
        for position, outcome in result.outcomes.items():
            index = self.indexes[position]
            if isinstance(outcome, InDoubt):
                for each in writes:
                    if each is not None:
                        each.doubtful = True  # the next look-up tells
                continue
            commit.settle(index, outcome)
            if isinstance(outcome, Landed):
                found = result.response.mutation_results[position]
                if index in self._allocated:
                    found.key.CopyFrom(key_of(commit.mutations[index]))
                commit.note_result(index, found)
        return result.error


class PlainCommit:
    """One request outside of transactions, sent until each of its mutations is settled.

    Its arguments are those of a `TransactionCommit`.
    """

    def __init__(
        self, request: Any, writes: Sequence[Write | None], skipped: Collection[int] = ()
    ) -> None:
        self.request = request
        self.mutations = request.mutations
        self.writes = writes
        self._skipped = skipped
        self.outcomes: dict[int, Outcome] = {}
        self._results: dict[int, Any] = {}
        self._answers: list[Any] = []
        parts: dict[type[_Part], list[int]] = {_Part: [], _Inserts: []}
        claiming: list[int] = []
        for index, (mutation, write) in enumerate(zip(self.mutations, writes, strict=True)):
            kind = _Part
            if index in skipped:
                continue
            if write is not None:
                if write.write_id is not None:
                    put_write_id(mutation, write)
                if write.rows is not None:
                    claiming.append(index)
                    continue
                if write.must_be_new:
                    kind = _Inserts
            parts[kind].append(index)
        #: The mutations that are not settled yet.
        self._parts: list[_Part] = []
        for kind, indexes in parts.items():
            if indexes:
                self._parts.append(kind(self, indexes))
        self._claims: list[_Claims] = []
        for begin in range(0, len(claiming), _MOST_CLAIMING):
            self._claims.append(_Claims(self, claiming[begin : begin + _MOST_CLAIMING]))

    def steps(self) -> Steps:
        """Send the mutations that are not settled yet, once. Returns a `Result`."""
        self.withhold_unguarded()
        left: list[_Part] = []
        todo = self._parts
        while todo:
            calls = []
            for each in todo:
                calls.append(Call("commit", each.request()))
            answers = yield calls
            parts, todo = todo, []
            for part, (response, failure) in zip(parts, answers, strict=True):
                if failure is None:
                    refused = self.take_answer(part.indexes, response)
                else:
                    refused = part.refused_by(failure)
                if refused:
                    yield from part.refuse(refused)
                elif failure is not None:
                    more = part.failed(failure)
                    todo += more
                    part.indexes = [each for each in part.indexes if each not in self.outcomes]
                    if part.indexes and not more:
                        left.append(part)
        self._parts = left
        unclaimed: list[_Claims] = []
        for claims in self._claims:
            unclaimed += yield from claims.steps()
        self._claims = unclaimed
        failed: dict[int, Exception] = {}
        unsettled: list[_Part | _Claims] = [*left, *unclaimed]
        for part_left in unsettled:
            for index in part_left.indexes:
                if index not in self.outcomes and part_left.error is not None:
                    failed[index] = part_left.error
        # Preferably one for which ndb sends the request again.
        error = next(filter(is_transient, failed.values()), next(iter(failed.values()), None))
        response = put_together(self._answers, self._results, len(self.writes))
        return Result(response, self.outcomes, failed, error)

    def request_of(self, indexes: Iterable[int]) -> Any:
        """Return a (raw) request with copies of some of its mutations."""
        request = type(self.request)()
        request.project_id, request.database_id = self.request.project_id, self.request.database_id
        request.mode = _CommitRequest.Mode.NON_TRANSACTIONAL
        request.mutations.extend([self.mutations[index] for index in indexes])
        return request

    def withhold_unguarded(self) -> None:
        """Settle the mutations whose only protection was a lock that is lost by now."""
        for index, write in enumerate(self.writes):
            if write is None or index in self.outcomes or index in self._skipped:
                continue
            if not write.guarded:
                self.settle(index, Unguarded(write.doubtful))
        if self.outcomes:
            for part in self._parts:
                part.indexes = [index for index in part.indexes if index not in self.outcomes]
            self._parts = [part for part in self._parts if part.indexes]

    def settle(self, index: int, outcome: Outcome) -> None:
        """Note the outcome of a mutation, if it is a watched one."""
        if self.writes[index] is not None:
            self.outcomes[index] = outcome

    def note_result(self, index: int, result: Any) -> None:
        """Note the (raw) result of a mutation that a look-up has found."""
        self._results[index] = result

    def take_answer(self, indexes: Sequence[int], response: Any) -> dict[int, int]:
        """Take the answer of one commit. Returns the conflicts, each with Datastore's version."""
        self._answers.append(response)
        refused: dict[int, int] = {}
        for index, result in zip(indexes, response.mutation_results, strict=False):
            if result.conflict_detected:
                refused[index] = result.version
            else:
                self._results[index] = result
                if self.writes[index] is not None:
                    self.outcomes[index] = Landed(result.version)
        return refused
