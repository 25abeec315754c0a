"""The plan of a transaction's commit: all or nothing, and at most once.

What was read before the transaction is looked up in it, so that a change is
told as such and not as contention. After a lost reply the same commit is sent
again; if Datastore knows the transaction no longer, what is stored tells
whether it was applied:

    commit ──▶ applied          the reply is lost
    commit again, the same transaction: Datastore commits it at most once
               ──▶ done                   it had not arrived; now it has
               ──▶ no longer valid        it is over: applied, or given up
    look       the mark of one of its writes, or an entity under an id that was
               allocated for it, is there: it was applied
               an entity that it was to change is as it was: it was not
               neither: nobody knows, and the caller is told so
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.api_core import exceptions as errors
from google.cloud.datastore_v1.types import datastore as datastore_types

from userlock.ndb import commits
from userlock.ndb.commits import (
    Answer,
    Call,
    InDoubt,
    Landed,
    Looked,
    Outcome,
    Refused,
    Result,
    Steps,
    Wait,
    Write,
    deletes,
    entity_of,
    has_mark,
    is_complete,
    is_same,
    key_of,
    look_up,
    make_insert,
    may_have_landed,
    name_of,
    put_mark,
    version_if_same,
)

_CommitResponse: Any = datastore_types.CommitResponse


class TransactionCommit:
    """The commit of a transaction. All or nothing.

    Args:
        request: a (raw) CommitRequest of the plan's own, without tickets.
        writes: the watched write of each mutation; None for one that is not watched.
    """

    def __init__(self, request: Any, writes: Sequence[Write | None]) -> None:
        self._request = request
        self._mutations = mutations = request.mutations
        self._writes = writes
        self._outcomes: dict[int, Outcome] = {}
        #: The first mutation of each entity: it builds on what is stored, others on the first.
        self._firsts: dict[bytes, int] = {}
        self._lasts: dict[bytes, int] = {}
        for index, mutation in enumerate(mutations):
            key = key_of(mutation)
            if is_complete(key):
                self._firsts.setdefault(name_of(key), index)
                self._lasts[name_of(key)] = index

    def simple_request(self) -> None:
        """Return None: there may be something to check before."""

    def steps(self, first: Answer | None = None) -> Steps:
        """Check what was read before the transaction, commit, and find out. Returns a `Result`."""
        refused = yield from self._check_versions()
        if refused is not None:
            return self._failed(*refused)
        overwrites: set[int] = yield from self._find_overwrites()
        commit = Call("commit", self._commit(overwrites))
        ((response, error),) = yield [commit]
        if may_have_landed(error):
            assert error is not None
            response, error = yield from self._resend(commit, error)
        if isinstance(error, errors.AlreadyExists):
            index = yield from self._find_existing()
            if index is not None:
                return self._failed(index, Refused(0))
        if error is not None:
            return Result(None, self._outcomes, {}, error)
        for index, result in enumerate(response.mutation_results):
            if self._writes[index] is not None:
                self._outcomes[index] = Landed(int(result.version), index in overwrites)
        return Result(response, self._outcomes, {}, None)

    def _failed(self, index: int, outcome: Outcome) -> Result:
        self._outcomes = {index: outcome}
        return Result(None, self._outcomes, {}, None)

    def _commit(self, overwrites: set[int]) -> Any:
        for index, (mutation, write) in enumerate(zip(self._mutations, self._writes, strict=True)):
            if write is None:
                continue
            put_mark(mutation, write)
            if write.must_be_new and index not in overwrites and self._is_first(index):
                make_insert(mutation)
        return self._request

    def _is_first(self, index: int) -> bool:
        key = key_of(self._mutations[index])
        return is_complete(key) and self._firsts[name_of(key)] == index

    # --- what was read before ---------------------------------------------------------------

    def _check_versions(self) -> Steps:
        """Find the first entity that was read before the transaction and has changed since.

        Read in the transaction, each is kept as it is until the commit by the
        transaction itself. Datastore would refuse a `base_version` too, but as
        contention: ndb would run the function again and again, each time with the
        same old object.
        """
        fenced = [
            (index, write)
            for index, write in enumerate(self._writes)
            if write is not None and write.base_version
        ]
        if not fenced:
            return None
        keys = {name_of(key): key for index, _ in fenced if (key := key_of(self._mutations[index]))}
        looked: Looked = yield from look_up(
            self._request, list(keys.values()), self._request.transaction
        )
        for index, write in fenced:
            name = name_of(key_of(self._mutations[index]))
            if name in looked.found:
                version = int(looked.found[name].version)
            elif deletes(self._mutations[index]):
                continue  # gone is gone, whoever did it
            else:
                # What is missing has the snapshot's version: a later one than was
                # read means that it was deleted.
                version = looked.missing.get(name, 0)
            # An earlier one: the transaction began before the read, and the commit is
            # refused as contention; the next attempt sees it.
            if version > write.base_version or not version:
                return index, Refused(version)
        return None

    def _find_overwrites(self) -> Steps:
        """Return the creations of what exists that are to overwrite it."""
        new = {
            name: index
            for name, index in self._firsts.items()
            if (write := self._writes[index]) is not None
            and write.must_be_new
            and write.may_overwrite
        }
        if not new:
            return set()
        keys = [key_of(self._mutations[index]) for index in new.values()]
        looked: Looked = yield from look_up(self._request, keys, self._request.transaction)
        return {index for name, index in new.items() if name in looked.found}

    def _find_existing(self) -> Steps:
        """Return which creation is of an entity that exists. Datastore's error does not tell."""
        new = [
            (name, index)
            for name, index in self._firsts.items()
            if (write := self._writes[index]) is not None and write.must_be_new
        ]
        if len(new) > 1:
            keys = [key_of(self._mutations[index]) for _, index in new]
            try:
                looked: Looked = yield from look_up(self._request, keys)
            except errors.GoogleAPIError:
                looked = Looked({}, {})
            for name, index in new:
                if name in looked.found:
                    return index
        return new[0][1] if new else None

    # --- lost replies -----------------------------------------------------------------------

    def _resend(self, commit: Call, lost: Exception) -> Steps:
        """Commit again; Datastore commits a transaction at most once. Returns an answer."""
        over = False
        for delay in commits.RESEND_DELAYS:
            yield Wait(delay * random.uniform(0.5, 1))
            ((response, error),) = yield [commit]
            if error is None:
                return response, None
            over = not may_have_landed(error)
            if over:
                break
        # Without an answer the first request may still be on its way.
        version = (yield from self._find_out()) if over else None
        if version is None:
            watched = [index for index, write in enumerate(self._writes) if write is not None]
            if watched:
                self._outcomes[watched[0]] = InDoubt(lost)
            return None, lost
        if version < 0:
            return None, lost
        return self._lost_response(version), None

    def _find_out(self) -> Steps:
        """Find out whether a transaction that is over was applied.

        The mark of one of its writes, or an entity under an id that was allocated
        for it, proves that it was; an entity that is as it was proves that it was not.

        Returns:
            The version of what it has written, 0 if that is not known; below 0: it was not
            applied; None: there is no telling.
        """
        lasts = {
            name: index for name, index in self._lasts.items() if self._writes[index] is not None
        }
        keys = [key_of(self._mutations[index]) for index in lasts.values()]
        try:
            looked: Looked = yield from look_up(self._request, keys)
        except errors.GoogleAPIError:
            return None
        proofs = [
            version
            for index in lasts.values()
            if (version := self._version_proving(index, looked)) is not None
        ]
        if proofs:
            return max(proofs)
        if self._is_all_gone(lasts, looked):
            return 0  # whoever has deleted it
        return -1 if any(self._is_as_before(index, looked) for index in lasts.values()) else None

    def _is_all_gone(self, lasts: dict[bytes, int], looked: Looked) -> bool:
        """Return whether all that was written is deletes of what was there, and it is not."""
        return (
            bool(lasts)
            and len(lasts) == len({name_of(key_of(each)) for each in self._mutations})
            and all(
                deletes(self._mutations[index])
                and (write := self._writes[index]) is not None
                and write.read_version > 0
                and name in looked.missing
                for name, index in lasts.items()
            )
        )

    def _version_proving(self, index: int, looked: Looked) -> int | None:
        """Return the version of a write that is found; 0 if it was changed since; or None."""
        mutation, write = self._mutations[index], self._writes[index]
        result = looked.found.get(name_of(key_of(mutation)))
        if result is None or write is None or deletes(mutation):
            return None
        # Nobody else knows an id that Datastore has allocated for this attempt.
        if has_mark(write, result.entity) or write.new_id:
            return version_if_same(result, mutation)
        return None

    def _is_as_before(self, index: int, looked: Looked) -> bool:
        mutation, write = self._mutations[index], self._writes[index]
        result = looked.found.get(name_of(key_of(mutation)))
        if result is None or write is None or not write.read_version:
            return False
        if not deletes(mutation) and is_same(result.entity, entity_of(mutation)):
            return False  # put as it was, it keeps its version
        return int(result.version) == write.read_version

    def _lost_response(self, version: int) -> Any:
        """Return the answer that was lost: all that a commit writes has one version."""
        response = _CommitResponse.pb(_CommitResponse())
        for _ in self._writes:
            response.mutation_results.add().version = version
        return response
