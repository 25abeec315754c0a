"""The plan of a transaction's commit: all or nothing, and at most once.

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
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from google.api_core import exceptions as errors
from google.cloud.datastore_v1.types import datastore as datastore_types

from userlock.ndb.commits import (
    Call,
    InDoubt,
    Landed,
    Looked,
    Name,
    Outcome,
    Refused,
    Resent,
    Result,
    Steps,
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
from userlock.ndb.further import Further, Pair

_CommitResponse: Any = datastore_types.CommitResponse


class _Watched(NamedTuple):
    """A watched mutation: its position in the request, and the name of its key."""

    position: int
    mutation: Any
    write: Write
    name: Name


class _RowWrite:
    """The write of a claim's row. Implements `commits.Write`."""

    base_version = 0
    must_be_new = new_id = doubtful = stays = False
    guarded = True
    rows = further = None

    def __init__(self, read_version: int, write_id: tuple[str, int] | None) -> None:
        self.read_version = read_version
        self.write_id = write_id


class TransactionCommit:
    """The commit of a transaction. All or nothing.

    Args:
        request: a (raw) CommitRequest of the plan's own, without tickets.
        writes: the watched write of each mutation; None for a mutation of another kind.
        skipped: the mutations that are not sent.
    """

    def __init__(
        self, request: Any, writes: Sequence[Write | None], skipped: Collection[int] = ()
    ) -> None:
        for position in sorted(skipped, reverse=True):
            del request.mutations[position]
        self._request = request
        self._count = len(writes)
        self._sent = [position for position in range(len(writes)) if position not in skipped]
        self._watched: list[_Watched] = []
        #: The first mutation of each entity, which builds on the stored entity, and the last one.
        self._firsts: dict[Name, _Watched] = {}
        self._lasts: dict[Name, _Watched] = {}
        for position, mutation in zip(self._sent, request.mutations, strict=True):
            write = writes[position]
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
            self._nonce = self._further.new_nonce()
        #: Whether look-ups, not an answer, have told that it was applied.
        self._found_out = False
        #: The rows of claims that the commit changes.
        self._rows: dict[Name, _Watched] = {}

    def steps(self) -> Steps:
        """Check the earlier reads, commit, and find out the outcome. Returns a `Result`."""
        looked: Looked = yield from self._examine()
        refused = self._find_refused(looked)
        if refused is not None:
            return _failed(*refused)
        commit = Call("commit", self._commit(looked), self._lands_once())
        ((response, error),) = yield [commit]
        if may_have_landed(error):
            assert error is not None
            response, error, in_doubt = yield from self._resend(commit, error)
            if in_doubt and self._watched:
                return Result(None, {self._watched[0].position: InDoubt(error)}, {}, error)
        if isinstance(error, errors.AlreadyExists):
            existing = yield from self._find_existing()
            if existing is not None:
                return _failed(existing, Refused(0))
        if error is not None:
            return Result(None, {}, {}, error)
        results = dict(zip(self._sent, response.mutation_results, strict=False))
        outcomes: dict[int, Outcome] = {}
        for each in self._watched:
            if each.position in results:
                version = int(results[each.position].version)
                overtaken = self._found_out and not version
                outcomes[each.position] = Landed(version, overtaken)
        return Result(put_together([response], results, self._count), outcomes, {}, None)

    def _commit(self, looked: Looked) -> Any:
        for each in self._watched:
            if each.write.write_id is not None:
                put_write_id(each.mutation, each.write)
            first = self._firsts.get(each.name) is each
            if first and each.write.must_be_new:
                turn_into_insert(each.mutation)
        mutations = self._request.mutations
        del mutations[len(self._sent) :]  # those of an earlier attempt
        self._rows.clear()
        if self._further is not None:
            changes = self._further.changes(self._claiming, looked, self._nonce)
            for name, change in changes.items():
                mutations.append(change.mutation)
                write = _RowWrite(change.version, change.write_id)
                self._rows[name] = _Watched(-1, change.mutation, write, name)
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

    def _look_up(self, watched: Iterable[_Watched]) -> Steps:
        looked: Looked = yield from look_up(
            self._request, [key_of(each.mutation) for each in watched]
        )
        return looked

    # --- before the commit ------------------------------------------------------------------

    def _examine(self) -> Steps:
        """Look up, in the transaction, what decides about it."""
        keys = []
        for each in self._watched:
            if each.write.base_version:
                keys.append(key_of(each.mutation))
        if self._further is None and not keys:
            return Looked({}, {})
        if self._further is not None:
            keys += self._further.expected_keys(self._claiming)
        looked: Looked = yield from look_up(self._request, keys, self._request.transaction)
        if self._further is not None:
            yield from self._further.look_further(self._request, self._claiming, looked)
        return looked

    def _find_refused(self, looked: Looked) -> tuple[int, Outcome] | None:
        """Find a mutation that is refused: its read is outdated, or another one has its value."""
        # Datastore would refuse a `base_version` too, but as contention: ndb would run the function
        # again and again, each time with the same old object.
        for position, mutation, write, name in self._watched:
            if not write.base_version:
                continue
            if name in looked.found:
                version = int(looked.found[name].version)
            elif deletes(mutation):
                continue  # it is gone, as it should be
            else:
                # A missing entity has the snapshot's version. A later one than that of the
                # read means that it was deleted.
                version = looked.missing.get(name, 0)
            # An earlier one means that the transaction began before the read. Its commit is
            # refused as contention, and the next attempt sees the entity.
            if version > write.base_version or not version:
                return position, Refused(version)
        if self._further is None:
            return None
        return next(iter(self._further.find_taken(self._claiming, looked).items()), None)

    def _find_existing(self) -> Steps:
        """Return the creation of an entity that exists. Datastore's error does not tell which."""
        new = self._creations()
        if len(new) > 1:
            with contextlib.suppress(errors.GoogleAPIError):
                looked: Looked = yield from self._look_up(new)
                for each in new:
                    if each.name in looked.found:
                        return each.position
        return new[0].position if new else None

    def _creations(self) -> list[_Watched]:
        return [each for each in self._firsts.values() if each.write.must_be_new]

    # --- lost replies -----------------------------------------------------------------------

    def _resend(self, commit: Call, lost: Exception) -> Steps:
        """Commit again. Returns the response, the error, and whether it remains in doubt."""
        writes = [each.write for each in self._watched]
        resent: Resent = yield from send_again(commit, writes)
        if resent.response is not None:
            return resent.response, None, False
        # Without an answer the first request may still be on its way.
        applied, versions = (yield from self._find_out()) if resent.over else (None, {})
        if not applied:
            return None, lost, applied is None
        self._found_out = True
        response = _CommitResponse.pb(_CommitResponse())
        for mutation in self._request.mutations:
            response.mutation_results.add().version = versions.get(name_of(key_of(mutation)), 0)
        return response, None, False

    def _find_out(self) -> Steps:
        """Return whether a transaction that is over was applied, None if that cannot be found out;
        and the versions of the entities after it, by name, as far as they are known."""
        everything = self._lasts | self._rows
        lasts = everything.values()
        try:
            looked: Looked = yield from self._look_up(lasts)
        except errors.GoogleAPIError:
            return None, {}
        proofs = [_version_proving(each, looked) for each in lasts]
        versions = [version for version in proofs if version is not None]
        if versions:
            # One version for all writes of a commit; but an entity that was put unchanged keeps its
            # version.
            return True, {each.name: _version_after(each, looked, max(versions)) for each in lasts}
        names = {name_of(key_of(each)) for each in self._request.mutations}
        if (
            lasts
            and names == everything.keys()
            and all(
                deletes(each.mutation)
                and each.write.read_version > 0
                and each.name in looked.missing
                for each in lasts
            )
        ):
            return True, {}  # it has deleted existing entities, and all are gone
        return (False if any(_is_unchanged(each, looked) for each in lasts) else None), {}


def _failed(position: int, outcome: Outcome) -> Result:
    return Result(None, {position: outcome}, {}, None)


def _version_proving(watched: _Watched, looked: Looked) -> int | None:
    """Return the version of a write that is found, 0 if its entity has changed since, or None."""
    _, mutation, write, name = watched
    result = looked.found.get(name)
    if result is None or deletes(mutation):
        return None
    # Nobody else knows an id that Datastore has allocated for this attempt.
    if has_write_id(write, result.entity) or write.new_id:
        return version_if_same(result, mutation)
    return None


def _version_after(watched: _Watched, looked: Looked, version: int) -> int:
    """Return the version of an entity after a commit that has written this version."""
    found = looked.found.get(watched.name)
    if found is None or deletes(watched.mutation):
        return version
    return version_if_same(found, watched.mutation) or version


def _is_unchanged(watched: _Watched, looked: Looked) -> bool:
    """Return whether the entity is as it was before the transaction."""
    _, mutation, write, name = watched
    result = looked.found.get(name)
    if result is None or not write.read_version:
        return False
    if not deletes(mutation) and is_same(result.entity, entity_of(mutation)):
        return False  # an entity that is put unchanged keeps its version
    return int(result.version) == write.read_version
