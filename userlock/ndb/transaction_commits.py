"""The plan of a transaction's commit: all or nothing, and at most once.

Also of one that `plain_commits` begins itself, for mutations that change claims.

Entities that were read before the transaction are looked up in it, so that a
change is reported as a stale write and not as contention. So are the claims that
it changes (`further`), whose rows it writes as well. After a lost reply
the same commit is sent again. If Datastore does not know the transaction any
longer, the stored entities tell whether it was applied:

    commit ──▶ applied          the reply is lost
    commit again, the same transaction: Datastore commits it at most once
               ──▶ done                   it had not arrived; now it has
               ──▶ no longer valid        it is over: applied, or given up
    look-up    the write id of one of its writes, or an entity under an id that
               was allocated for it, is there: it was applied
               an entity that it was to change is unchanged: it was not applied
               neither: it remains in doubt, and the caller gets that error
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from google.api_core import exceptions as errors
from google.cloud.datastore_v1.types import datastore as datastore_types

from userlock.ndb.commits import (
    Call,
    Further,
    InDoubt,
    Landed,
    Looked,
    Name,
    Outcome,
    Pair,
    Refused,
    Resent,
    Result,
    Steps,
    Unguarded,
    Write,
    deletes,
    entity_of,
    has_write_id,
    is_complete,
    is_same,
    key_of,
    look_up,
    may_have_landed,
    name_of,
    put_together,
    put_write_id,
    send_again,
    turn_into_insert,
    version_if_same,
)

_CommitResponse: Any = datastore_types.CommitResponse


class _Watched(NamedTuple):
    """A watched mutation: its position in the request, and the name of its key."""

    position: int
    mutation: Any
    write: Write
    name: Name


class TransactionCommit:
    """The commit of a transaction. All or nothing.

    Args:
        request: a (raw) CommitRequest of the plan's own, without tickets. Without a transaction,
            the first look-up begins one, and each mutation may be refused by itself.
        writes: the watched write of each mutation; None for a mutation of another kind.
        skipped: the mutations that are not sent.
        nonce: that of an earlier attempt, if any, by which the rows of claims recognise it.
    """

    def __init__(
        self,
        request: Any,
        writes: Sequence[Write | None],
        skipped: Collection[int] = (),
        nonce: int = 0,
    ) -> None:
        self._request = request
        self._writes = writes
        self._separately = not request.transaction
        self._nonce = nonce
        self._outcomes: dict[int, Outcome] = {}
        self._sent = list(range(len(writes)))
        #: Whether look-ups, not an answer, have told that it was applied.
        self._found_out = False
        self._arrange(skipped)

    def _arrange(self, skipped: Collection[int]) -> None:
        """Take the mutations out that are not sent, and arrange the others."""
        for index in reversed(range(len(self._sent))) if skipped else ():
            if self._sent[index] in skipped:
                del self._request.mutations[index]
        self._sent = [position for position in self._sent if position not in skipped]
        self._watched: list[_Watched] = []
        #: The first mutation of each entity, which builds on the stored entity, and the last one.
        self._firsts: dict[Name, _Watched] = {}
        self._lasts: dict[Name, _Watched] = {}
        for position, mutation in zip(self._sent, self._request.mutations, strict=True):
            write = self._writes[position]
            if write is None:
                continue
            key = key_of(mutation)
            watched = _Watched(position, mutation, write, name_of(key))
            self._watched.append(watched)
            if is_complete(key):
                self._firsts.setdefault(watched.name, watched)
                self._lasts[watched.name] = watched
        #: The last mutations that change claims. Those before them count for nothing.
        self._claiming = [
            Pair(each.position, each.mutation, each.write)
            for each in self._lasts.values()
            if each.write.rows is not None
        ]
        self._further: Further | None = None
        if self._claiming:
            self._further = self._claiming[0].write.further
            self._nonce = self._nonce or self._further.new_nonce()

    def steps(self) -> Steps:
        """Check the earlier reads, commit, and find out the outcome. Returns a `Result`."""
        del self._request.mutations[len(self._sent) :]  # the rows of an earlier attempt
        looked: Looked = yield from self._examine()
        response, error = None, None
        if self._separately and any(each.write.doubtful for each in self._watched):
            response = self._applied(looked)
        while response is None and (refused := self._find_refused(looked)):
            if not self._separately:
                return Result(None, refused, {}, None)
            self._outcomes |= refused
            self._arrange(refused)
            if not self._watched:
                return Result(None, self._outcomes, {}, None)
        if response is None:
            commit = Call("commit", self._commit(looked), self._lands_once())
            ((response, error),) = yield [commit]
            if may_have_landed(error):
                assert error is not None
                response, in_doubt = yield from self._resend(commit)
                if in_doubt and self._watched:
                    doubt = {self._watched[0].position: InDoubt(error)}
                    return Result(None, self._outcomes | doubt, {}, error)
        if response is None:
            existing = None
            if isinstance(error, errors.AlreadyExists):
                existing = yield from self._find_existing()
            if existing is None:
                return Result(None, self._outcomes, {}, error)
            return Result(None, self._outcomes | {existing: Refused(0)}, {}, None)
        results = dict(zip(self._sent, response.mutation_results, strict=False))
        for each in self._watched:
            if each.position in results:
                version = int(results[each.position].version)
                overtaken = self._found_out and not version
                self._outcomes[each.position] = Landed(version, overtaken)
        response = put_together([response], results, len(self._writes))
        return Result(response, self._outcomes, {}, None)

    def _commit(self, looked: Looked) -> Any:
        for each in self._watched:
            if each.write.write_id is not None:
                put_write_id(each.mutation, each.write)
            if each.write.must_be_new and self._firsts.get(each.name) is each:
                turn_into_insert(each.mutation)
        if self._further is not None:
            changes = self._further.changes(self._claiming, looked, self._nonce)
            self._request.mutations.extend(changes)
        return self._request

    def _lands_once(self) -> bool:
        """Return whether a second copy is refused: it inserts what is still there by then."""
        return any(
            each.write.must_be_new
            and each.write.stays
            and each.write.write_id is not None
            and self._lasts[each.name] is each
            for each in self._firsts.values()
        )

    # --- before the commit ------------------------------------------------------------------

    def _examine(self) -> Steps:
        """Look up, in the transaction, what decides about it."""
        request, keys = self._request, []
        for each in self._watched:
            if each.write.base_version:
                keys.append(key_of(each.mutation))
        if self._further is None and not keys:
            return Looked({}, {})
        if self._further is not None:
            keys += self._further.expected_keys(self._claiming)
        if self._separately:
            request.transaction = b""
        looked: Looked = yield from look_up(
            request, keys, request.transaction, begin=self._separately
        )
        request.transaction = looked.transaction
        if self._further is not None:
            yield from self._further.look_further(request, self._claiming, looked)
        return looked

    def _find_refused(self, looked: Looked) -> dict[int, Outcome]:
        """Find mutations that are refused: their reads are outdated, or others have their values.

        One of them, unless each may be refused by itself.
        """
        refused: dict[int, Outcome] = {}
        for each in self._watched:
            if each.write.base_version or self._separately:
                outcome = self._refusal_of(each, looked)
                if outcome is not None:
                    refused[each.position] = outcome
        if self._further is not None and not refused:
            refused |= self._further.find_taken(self._claiming, looked)
        return refused if self._separately or not refused else dict([*refused.items()][:1])

    def _refusal_of(self, watched: _Watched, looked: Looked) -> Outcome | None:
        # Datastore would refuse a `base_version` too, but as contention: ndb would run the function
        # again and again, each time with the same old object.
        _, mutation, write, name = watched
        if self._separately and not write.guarded:
            return Unguarded(write.doubtful)
        if not write.base_version:
            exists = name in looked.found and self._firsts.get(name) is watched
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
        if 0 < version <= write.base_version:
            return None
        return Refused(version, write.doubtful)

    def _find_existing(self) -> Steps:
        """Return the creation of an entity that exists. Datastore's error does not tell which."""
        new = [each for each in self._firsts.values() if each.write.must_be_new]
        if len(new) > 1:
            with contextlib.suppress(errors.GoogleAPIError):
                looked: Looked = yield from look_up(
                    self._request, [key_of(each.mutation) for each in new]
                )
                new = [each for each in new if each.name in looked.found] or new
        return new[0].position if new else None

    # --- lost replies -----------------------------------------------------------------------

    def _resend(self, commit: Call) -> Steps:
        """Commit again. Returns the response, if it was applied, and whether it is in doubt."""
        resent: Resent = yield from send_again(commit, [each.write for each in self._watched])
        if resent.response is not None or not resent.over:
            # Without an answer the first request may still be on its way.
            return resent.response, resent.response is None
        keys = [key_of(each.mutation) for each in self._lasts.values()]
        if self._further is not None:
            keys += self._further.expected_keys(self._claiming)
        try:
            looked: Looked = yield from look_up(self._request, keys)
        except errors.GoogleAPIError:
            return None, True
        response = self._applied(looked)
        unchanged = any(_is_unchanged(each, looked) for each in self._lasts.values())
        return response, response is None and not unchanged

    def _applied(self, looked: Looked) -> Any:
        """Return the response of a commit that look-ups prove to have been applied, or None.

        It has the versions of the entities, as far as they are known.
        """
        lasts = self._lasts.values()
        proofs = [self._version_proving(each, looked) for each in lasts]
        versions = [version for version in proofs if version is not None]
        names = {name_of(key_of(each)) for each in self._request.mutations[: len(self._sent)]}
        # It has deleted existing entities, and nothing else, and all are gone.
        all_gone = names == self._lasts.keys() and all(
            deletes(each.mutation) and each.write.read_version > 0 and each.name in looked.missing
            for each in lasts
        )
        if not versions and not (lasts and all_gone):
            return None
        self._found_out = True
        response = _CommitResponse.pb(_CommitResponse())
        for mutation in self._request.mutations:
            # One version for all writes of a commit; but an entity that was put unchanged keeps its
            # version.
            version, found = max(versions, default=0), looked.found.get(name_of(key_of(mutation)))
            if found is not None and not deletes(mutation):
                version = version_if_same(found, mutation) or version
            response.mutation_results.add().version = version
        return response

    def _version_proving(self, watched: _Watched, looked: Looked) -> int | None:
        """Return the version of a write that is found, 0 if its entity has changed since."""
        position, mutation, write, name = watched
        result = looked.found.get(name)
        if result is None or deletes(mutation):
            return None
        # Nobody else knows an id that Datastore has allocated for this attempt.
        if not has_write_id(write, result.entity) and not write.new_id:
            pair = Pair(position, mutation, write)
            if write.rows is None or not write.further.has_row_of(looked, pair, self._nonce):
                return None
        return version_if_same(result, mutation)


def _is_unchanged(watched: _Watched, looked: Looked) -> bool:
    """Return whether the entity is as it was before the transaction."""
    _, mutation, write, name = watched
    result = looked.found.get(name)
    if result is None or not write.read_version:
        return False
    if not deletes(mutation) and is_same(result.entity, entity_of(mutation)):
        return False  # an entity that is put unchanged keeps its version
    return int(result.version) == write.read_version
