"""Transactions: checked before each attempt and each commit, and never applied twice.

ndb runs a transaction's function again after every transient error, also when
the commit was applied and only its reply was lost. So here a commit that may
have been applied is not run again before it is known that it was not:

    commit ──▶ applied          the reply is lost
    commit again, the same transaction: Datastore commits it at most once
               ──▶ done                   it had not arrived; now it has
               ──▶ no longer valid        it is over: applied, or given up
    look       the mark of one of its writes, or an entity under an id that was
               allocated for it, is there: it was applied
               an entity that it was to change is as it was: it was not
               neither: nobody knows, and whoever ran it is told so
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from google.api_core.exceptions import Aborted, AlreadyExists
from google.cloud.ndb import _datastore_api, _transaction, context, exceptions, tasklets

from userlock.ndb.hooks.calls import Looked, again, key_in, look_up, may_have_landed, serialized
from userlock.ndb.hooks.commits import (
    Sent,
    fingerprint_sent,
    has_mark_of,
    paired,
    sent_entity,
    write_of,
)
from userlock.ndb.hooks.futures import observe, untold_error
from userlock.ndb.hooks.runtime import transaction_notes
from userlock.ndb.hooks.versions import fingerprint
from userlock.ndb.watch import Handler, Write

log = logging.getLogger(__name__)

#: Before the same commit is sent again, in seconds; with jitter.
_RESEND_DELAYS = (0.1, 0.4, 1.6)


def hook_transactions(handler: Handler) -> None:
    """Hook into the beginning, the commit and the rollback of transactions."""
    _hook_beginning(handler)
    _hook_committing()
    _hook_rolling_back()


# --- attempts -------------------------------------------------------------------------------


class _Runs:
    """A transaction's function, and how its last attempt went."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._batches: dict[bytes, Any] = {}
        self.attempt: Any = None

    def __call__(self) -> Any:
        for batch in self._batches.values():
            for sent in _watched(batch):
                _write(sent).trying_again()
        self._batches = context.get_context().commit_batches
        return self._run()


def _hook_beginning(handler: Handler) -> None:
    """A transaction sees what was there at its beginning: let our own writes be.

    Outside ndb's retry wrapper, which takes an error of the transaction for one
    of a call within a call as long as any other call is under way.
    """
    begin = _transaction.transaction_async_
    attempt = _transaction._transaction_async

    def begin_after_writes(callback: Any, *args: Any, **kwargs: Any) -> Any:
        handler.beginning_transaction()
        if context.get_context().transaction:  # joined, or an error of ndb's
            return begin(callback, *args, **kwargs)
        runs = _Runs(callback)
        return _with_its_own_error(begin(runs, *args, **kwargs), runs)

    def attempt_and_remember(running_in: Any, callback: Any, *args: Any, **kwargs: Any) -> Any:
        future = attempt(running_in, callback, *args, **kwargs)
        if isinstance(callback, _Runs):
            callback.attempt = future
        return future

    _transaction.transaction_async_ = begin_after_writes
    _transaction._transaction_async = attempt_and_remember


@tasklets.tasklet
def _with_its_own_error(transaction: Any, runs: _Runs) -> Any:
    """ndb may disguise an attempt's error: raise what it was.

    Disguised it has no type: whoever expects a `StaleWriteError` would not see it.
    """
    try:
        result = yield transaction
    except exceptions.NestedRetryException:
        error = None if runs.attempt is None else runs.attempt.exception()
        if error is None:
            raise
        raise error from None
    return result


# --- commits --------------------------------------------------------------------------------


def _watched(batch: Any) -> list[Sent]:
    """The watched writes of a transaction."""
    sents = paired(batch.mutations, batch.futures)
    return [sent for sent in sents if sent.write is not None]


def _write(sent: Sent) -> Write:
    write = sent.write
    assert write is not None
    return write


def note_begun(future: Any, not_fenced: Callable[[], Exception | None]) -> None:
    """A put or delete of the running transaction has begun: its error must not vanish.

    ndb's `Key.delete` drops its future in a transaction. What fails on its way
    to the commit, as where the global cache does not answer, is not in it.

    Args:
        future: its outcome to be.
        not_fenced: asked before the commit; see `Write.not_fenced`.
    """
    observe(future)
    transaction_notes().setdefault("begun", []).append((future, not_fenced))


def _raise_what_failed() -> None:
    """Raise the first error of a write that nobody has been told of: nothing is committed then."""
    for future, not_fenced in transaction_notes().get("begun", ()):
        if future.done() and untold_error(future) is not None:
            raise future.exception()
        if (error := not_fenced()) is not None:
            raise error


def _hook_committing() -> None:
    """Check before a transaction commits, and take each mutation's result."""
    commit = _datastore_api.commit
    process_commit = _datastore_api._process_commit

    @tasklets.tasklet
    def commit_if_allowed(transaction: bytes, retries: Any = None, timeout: Any = None) -> Any:
        _raise_what_failed()
        batch = context.get_context().commit_batches.get(transaction)
        watched = [] if batch is None else _watched(batch)
        for sent in watched:
            _write(sent).about_to_commit()
        if fenced := [sent for sent in watched if _write(sent).base_version]:
            yield _check_versions(transaction, fenced)
        if new := [sent for sent in watched if _write(sent).may_overwrite]:
            yield _overwrite_existing(transaction, new)
        try:
            if watched:
                yield _commit_once(lambda: commit(transaction, retries=0, timeout=timeout), watched)
            else:
                yield commit(transaction, retries=retries, timeout=timeout)
        except AlreadyExists as error:
            new = [sent for sent in watched if _write(sent).must_be_new]
            if not new:
                raise
            existing = yield _find_existing(new)
            raise existing.conflicted(0) from error
        if batch is not None:
            batch._userlock_over = True

    def take_results(rpc: Any, futures: list[Any]) -> None:
        if rpc.exception() is None:
            results = rpc.result()._pb.mutation_results
            for future, result in zip(futures, results, strict=False):
                # What is not in a transaction is settled in `commits`.
                mutation = getattr(future, "_userlock_mutation", None)
                if mutation is not None:
                    version = result.version or fingerprint_sent(mutation)
                    write_of(future).landed(version)  # type: ignore[union-attr]
        process_commit(rpc, futures)

    _datastore_api.commit = commit_if_allowed
    _datastore_api._process_commit = take_results


@tasklets.tasklet
def _commit_once(commit: Callable[[], Any], watched: list[Sent]) -> Any:
    """Commit; while it is not known whether it was applied, find out."""
    try:
        yield commit()
        return
    except Exception as error:
        if not may_have_landed(error):
            raise
        lost = error
    over = False
    for delay in _RESEND_DELAYS:
        yield tasklets.sleep(delay * random.uniform(0.5, 1))
        try:
            yield commit()
            return
        except Exception as error:
            over = not may_have_landed(error)
            if over:
                break
    # Without an answer the first request may still be on its way.
    applied = (yield _find_out(watched)) if over else None
    if applied is None:
        raise _write(watched[0]).in_doubt() from lost
    if not applied:
        raise lost


@tasklets.tasklet
def _find_out(watched: list[Sent]) -> Any:
    """Whether a transaction that is over was applied; None: there is no telling."""
    try:
        looked = yield again(lambda: look_up([key_in(sent.mutation) for sent in watched]))
    except Exception:
        return None
    version = next((v for sent in watched if (v := _landed_version(sent, looked))), 0)
    if version:
        for sent in watched:
            _tell_landed(sent, looked, version)
        return True
    if all(_is_gone(sent, looked) for sent in watched):
        return True  # whoever has deleted it
    # Of several writes of one entity the last one tells.
    last = {serialized(key_in(sent.mutation)): sent for sent in watched}
    return False if any(_is_as_before(sent, looked) for sent in last.values()) else None


def _is_gone(sent: Sent, looked: Looked) -> bool:
    return "delete" in sent.mutation and serialized(key_in(sent.mutation)) in looked.missing


def _landed_version(sent: Sent, looked: Looked) -> int:
    """The version that proves that a write, and so its whole transaction, was applied; or 0."""
    result = looked.found.get(serialized(key_in(sent.mutation)))
    if result is None or "delete" in sent.mutation:
        return 0
    # Nobody else knows an id that Datastore has allocated for this attempt.
    if getattr(sent.future, "_userlock_new_id", False) or has_mark_of(sent, result.entity):
        return int(result.version) or fingerprint(result.entity)
    return 0


def _tell_landed(sent: Sent, looked: Looked, version: int) -> None:
    """All that a commit writes has one version. What has another was written again since."""
    key = serialized(key_in(sent.mutation))
    if "delete" in sent.mutation:
        _write(sent).landed(version)
        return
    result = looked.found.get(key)
    if result is None:
        return
    sent_print = fingerprint(sent_entity(sent.mutation))
    if fingerprint(result.entity) == sent_print and result.version in (0, version):
        _write(sent).landed(int(result.version) or sent_print)


def _is_as_before(sent: Sent, looked: Looked) -> bool:
    """Whether an entity that the transaction was to change is as it was read."""
    write, key = _write(sent), serialized(key_in(sent.mutation))
    result = looked.found.get(key)
    if result is None or not write.read_version:
        return False
    now = fingerprint(result.entity)
    if "delete" not in sent.mutation and now == fingerprint(sent_entity(sent.mutation)):
        return False  # it would be the same if it had been applied
    return write.read_version in (int(result.version), now)


# --- what was read before the transaction ---------------------------------------------------


@tasklets.tasklet
def _find_existing(new: list[Sent]) -> Any:
    """Which of the creations is of an entity that exists. Datastore's error does not tell."""
    if len(new) > 1:
        try:
            looked = yield look_up([key_in(sent.mutation) for sent in new])
        except Exception:
            looked = Looked({}, {})
        for sent in new:
            if serialized(key_in(sent.mutation)) in looked.found:
                return sent.write
    return new[0].write


@tasklets.tasklet
def _overwrite_existing(transaction: bytes, new: list[Sent]) -> Any:
    """Creations of what exists become upserts: refused, they would take the whole commit along."""
    creations = [sent for sent in new if "insert" in sent.mutation]
    keys = [key_in(sent.mutation) for sent in creations]
    looked = yield again(lambda: look_up(keys, transaction), unless=Aborted)
    for sent, key_pb in zip(creations, keys, strict=True):
        if serialized(key_pb) in looked.found:
            _write(sent).overwriting()
            sent.mutation.upsert = sent.mutation.insert


@tasklets.tasklet
def _check_versions(transaction: bytes, fenced: list[Sent]) -> Any:
    """Raise for the first entity that was read before the transaction and has changed since.

    Datastore would refuse the commit as well, but as contention; ndb would
    then run the function again and again, each time with the same old object.
    """
    keys = [key_in(sent.mutation) for sent in fenced]
    looked = yield again(lambda: look_up(keys, transaction), unless=Aborted)
    for sent, key_pb in zip(fenced, keys, strict=True):
        if "delete" in sent.mutation and serialized(key_pb) in looked.missing:
            for field in ("base_version", "conflict_resolution_strategy"):
                sent.mutation._pb.ClearField(field)  # gone is gone, whoever did it
            continue
        changed_to = _changed_to(_write(sent).base_version, looked, serialized(key_pb))
        if changed_to is not None:
            raise _write(sent).conflicted(changed_to)


def _changed_to(base_version: int, looked: Looked, key: bytes) -> int | None:
    """The version that an entity has by now (0: not known), or None where it is as it was read."""
    if base_version < 0:
        found = looked.found.get(key)
        same = found is not None and fingerprint(found.entity) == base_version
        return None if same else 0
    # What is missing has the version of the snapshot: a later one than was read
    # means that the entity was deleted. An earlier version: the transaction
    # began before what was read. Its commit is refused as contention, and the
    # next attempt sees it.
    version = int((looked.found.get(key) or looked.missing[key]).version)
    return version if version > base_version or not version else None


# --- rollbacks ------------------------------------------------------------------------------


def _hook_rolling_back() -> None:
    """An error of a rollback must not hide the reason for it.

    ndb would raise it instead, or, as it comes from a call within a call, run
    the transaction again. A transaction that is not rolled back expires.
    """
    roll_back = _datastore_api.rollback

    @tasklets.tasklet
    def roll_back_quietly(transaction: bytes, *args: Any, **kwargs: Any) -> Any:
        try:
            yield roll_back(transaction, *args, **kwargs)
        except Exception:
            log.debug("a rollback failed", exc_info=True)

    _datastore_api.rollback = roll_back_quietly
