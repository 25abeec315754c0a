"""Commits outside of any transaction, and what became of each write in them.

A commit whose reply is lost is sent again, and may meet what it has written
itself. A write that carries a mark, a value that no other write has, is
recognised then: it has landed. Of one without a mark nobody can tell.

    first try    base_version 7 ──▶ v8      the reply is lost
    second try   base_version 7 ──▶ conflict: there is v8
    look         v8 has the mark of this write: it has landed

A new entity under an id that Datastore allocates meets nothing: a second try
would make a second one. So it is not sent again while it may have landed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from google.api_core.exceptions import AlreadyExists, InvalidArgument
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.ndb import _datastore_api, context, tasklets

from userlock.ndb.hooks.calls import (
    DOUBTFUL,
    again,
    key_in,
    look_up,
    may_have_landed,
    serialized,
)
from userlock.ndb.hooks.versions import fingerprint
from userlock.ndb.watch import Write

#: The legacy mode of concurrency allows a transaction no more entity groups.
MAX_GROUPS = 25


class Sent(NamedTuple):
    """A mutation on its way, and who waits for it."""

    mutation: Any
    future: Any

    @property
    def write(self) -> Write | None:
        """The watched write that it is, if it is one."""
        return write_of(self.future)


class Doubt:
    """Whether an earlier try of a commit may have been applied. Counts as true if so."""

    def __init__(self, already: bool = False) -> None:
        self._doubtful = already

    def note(self, error: Exception) -> None:
        """A try has failed."""
        self._doubtful = self._doubtful or may_have_landed(error)

    def __bool__(self) -> bool:
        return self._doubtful


def write_of(future: Any) -> Write | None:
    """The watched write that a future of a batch is of."""
    write: Write | None = getattr(future, "_userlock_write", None)
    return write


def hook_plain_commits() -> None:
    """Send batches with watched writes our way."""
    batch_class = _datastore_api._NonTransactionalCommitBatch
    send = batch_class.idle_callback

    def send_batch(self: Any) -> None:
        if any(write_of(future) is not None for future in self.futures):
            _send(self.mutations, self.futures, self.options, _send_again)
        elif self.mutations:  # its only puts may have gone to the inserts
            send(self)

    batch_class.idle_callback = send_batch


def paired(mutations: Sequence[Any], futures: Sequence[Any]) -> list[Sent]:
    """Each mutation of a batch with its future."""
    return [Sent(*pair) for pair in zip(mutations, futures, strict=True)]


def start(
    send: Callable[..., Any], batch: list[Sent], options: Any, doubt: Doubt, *more: Any
) -> None:
    """Begin to send a batch. Should that itself fail, whoever waits is told."""

    def tell(sending: Any) -> None:
        error = sending.exception()
        for sent in batch:
            if error is not None and not sent.future.done():
                sent.future.set_exception(error)

    send(batch, options, doubt, *more).add_done_callback(tell)


def _send(
    mutations: Sequence[Any], futures: Sequence[Any], options: Any, otherwise: Callable[..., Any]
) -> None:
    """Send a batch. Nearly all go well: nothing is made ready for the others beforehand."""
    begun_in = context.get_context()

    def commit() -> Any:
        return _datastore_api._datastore_commit(mutations, None, retries=0, timeout=options.timeout)

    def take_answer(rpc: Any) -> None:
        if rpc.exception() is None:
            results = rpc.result()._pb.mutation_results
            if not any(result.conflict_detected for result in results):
                for mutation, future, result in zip(mutations, futures, results, strict=False):
                    if (write := write_of(future)) is not None:
                        write.landed(result.version or fingerprint_sent(mutation))
                # Who waits goes on at once, so only now that all know their versions. ndb would
                # read each result through a wrapper, which takes longer than all that is ours.
                allocated = False
                for future, result in zip(futures, results, strict=False):
                    if result.HasField("key"):
                        allocated = True
                    elif not future.done():  # it was cancelled meanwhile
                        future.set_result(None)
                if allocated:
                    _datastore_api._process_commit(rpc, futures)
                return
        with begun_in.use():
            start(otherwise, paired(mutations, futures), options, Doubt(), commit, rpc)

    commit().add_done_callback(take_answer)


@tasklets.tasklet
def _send_again(
    batch: list[Sent], options: Any, doubt: Doubt, commit: Callable[[], Any], first: Any
) -> Any:
    """Part of `_send`, after a first try that was refused or has failed."""
    rpc = again(commit, options.retries, doubt.note, first=first)
    yield answered(rpc)
    yield from settle(batch, rpc, doubt)


@tasklets.tasklet
def answered(rpc: Any) -> Any:
    """Wait for an RPC, whatever its outcome."""
    try:
        yield rpc
    except Exception:
        return


def settle(batch: Sequence[Sent], rpc: Any, doubt: Doubt) -> Any:
    """Tell each write of a commit, and whoever waits for it, what became of it.

    Part of a tasklet: use it with `yield from`.
    """
    futures = [sent.future for sent in batch]
    if rpc.exception() is None:
        results = rpc.result()._pb.mutation_results
        yield from settle_results(batch, results, doubt)
    # ndb does the rest: keys that were allocated, and the errors of all.
    _datastore_api._process_commit(rpc, futures)


def settle_results(batch: Sequence[Sent], results: Sequence[Any], doubt: Doubt) -> Any:
    """Part of `settle`: the watched writes of a commit that was answered."""
    refused: list[tuple[Sent, int]] = []
    for sent, result in zip(batch, results, strict=False):
        if result.conflict_detected:
            refused.append((sent, result.version))
        elif sent.write is not None:
            sent.write.landed(result.version or fingerprint_sent(sent.mutation))
    yield from refuse(refused, len(batch) - len(refused), doubt)


def refuse(refused: Sequence[tuple[Sent, int]], others_landed: int, doubt: Doubt) -> Any:
    """Part of a tasklet: these were refused, each for the version that is given with it.

    Unless it is found that they met themselves, or that what they were to delete is gone.
    """
    ours: dict[bytes, int] = {}
    perhaps = [sent for sent, _ in refused if doubt or "delete" in sent.mutation]
    if perhaps:
        ours = yield find_ours(perhaps)
    for sent, version in refused:
        write = sent.write
        if write is None or sent.future.done():
            continue
        landed = ours.get(serialized(key_in(sent.mutation)))
        if landed is not None:
            write.landed(landed)
            sent.future.set_result(None)
        else:
            error = write.conflicted(
                version, others_landed=others_landed, may_have_landed=bool(doubt)
            )
            sent.future.set_exception(error)


@tasklets.tasklet
def find_ours(batch: Sequence[Sent]) -> Any:
    """Which of these are in Datastore as they were sent, for certain: versions by key."""
    try:
        looked = yield look_up([key_in(sent.mutation) for sent in batch])
    except Exception:
        return {}  # then there is no telling
    ours = {}
    for sent in batch:
        key = serialized(key_in(sent.mutation))
        if "delete" in sent.mutation:
            # Gone is gone, whoever did it.
            if key in looked.missing:
                ours[key] = looked.missing[key].version
        elif key in looked.found and has_mark_of(sent, looked.found[key].entity):
            ours[key] = looked.found[key].version or fingerprint(looked.found[key].entity)
    return ours


def has_mark_of(sent: Sent, entity_pb: Any) -> bool:
    """Whether an entity in Datastore is what this write has put there."""
    mark = None if sent.write is None else sent.write.mark
    if mark is None or mark not in entity_pb.properties:
        return False
    return bool(entity_pb.properties[mark] == sent_entity(sent.mutation).properties[mark])


def sent_entity(mutation: Any) -> Any:
    """The (raw) Entity message of a put."""
    return (mutation.insert or mutation.upsert)._pb


def fingerprint_sent(mutation: Any) -> int:
    """For a server that does not tell versions; 0 for a delete."""
    return 0 if "delete" in mutation else fingerprint(sent_entity(mutation))


# --- creations under ids that Datastore allocates -------------------------------------------


def batch_of_new_ids(batch_class: Any, put: Callable[[Any, Any], Any]) -> Any:
    """The class of batches of new entities without ids, sent beside the ordinary ones."""

    class NewIds(batch_class):
        """New entities, which are not sent again while they may have landed."""

        def put(self, entity_pb: Any) -> Any:
            return put(self, entity_pb)

        def idle_callback(self) -> None:
            _send(self.mutations, self.futures, self.options, _create_again)

    return NewIds


@tasklets.tasklet
def _create_again(
    batch: list[Sent], options: Any, doubt: Doubt, commit: Callable[[], Any], first: Any
) -> Any:
    """As `_send_again`, as long as it is certain that nothing has landed."""
    rpc = again(commit, options.retries, doubt.note, unless=DOUBTFUL, first=first)
    yield answered(rpc)
    error = rpc.exception()
    if may_have_landed(error):
        for sent in batch:
            assert sent.write is not None
            in_doubt = sent.write.in_doubt()
            in_doubt.__cause__ = error
            if not sent.future.done():
                sent.future.set_exception(in_doubt)
    yield from settle(batch, rpc, doubt)


# --- creations under keys of their own ------------------------------------------------------


def batch_of_inserts(batch_class: Any, put: Callable[[Any, Any], Any]) -> Any:
    """The class of batches that insert, sent beside the ordinary ones."""

    class Inserts(batch_class):
        """New entities, in one commit: all or none. If one exists, each by itself."""

        def put(self, entity_pb: Any) -> Any:
            future = put(self, entity_pb)
            mutation = self.mutations[-1]
            mutation.insert = mutation.upsert
            return future

        def idle_callback(self) -> None:
            start(_insert, paired(self.mutations, self.futures), self.options, Doubt())

    return Inserts


@tasklets.tasklet
def _insert(batch: list[Sent], options: Any, doubt: Doubt) -> Any:
    rpc = again(
        lambda: _commit_at_once([sent.mutation for sent in batch], options.timeout),
        options.retries,
        doubt.note,
    )
    yield answered(rpc)
    error = rpc.exception()
    if isinstance(error, AlreadyExists) and len(batch) == 1:
        (sent,) = batch
        write = sent.write
        ours = (yield find_ours(batch)) if doubt else {}
        if write is not None and write.may_overwrite and not ours:
            write.overwriting()
            sent.mutation.upsert = sent.mutation.insert
            start(_insert, batch, options, doubt)
            return
        yield from refuse([(sent, 0)], 0, doubt)
    elif isinstance(error, AlreadyExists):
        for sent in batch:
            start(_insert, [sent], options, Doubt(already=bool(doubt)))
        return
    elif isinstance(error, InvalidArgument) and len(batch) > MAX_GROUPS:
        for begin in range(0, len(batch), MAX_GROUPS):
            start(_insert, batch[begin : begin + MAX_GROUPS], options, doubt)
        return
    yield from settle(batch, rpc, doubt)


def _commit_at_once(mutations: Sequence[Any], timeout: float | None) -> Any:
    """A commit in a transaction of its own, in one round trip.

    Without one, what is inserted beside an entity that exists may land or not:
    "may not apply as all or none" (CommitRequest.Mode). Who was refused could
    then not be told from who met himself.
    """
    client = context.get_context().client
    request = datastore_types.CommitRequest(
        project_id=client.project,
        database_id=client.database,
        mode=datastore_types.CommitRequest.Mode.TRANSACTIONAL,
        mutations=mutations,
        single_use_transaction=datastore_types.TransactionOptions(
            read_write=datastore_types.TransactionOptions.ReadWrite()
        ),
    )
    metadata = _datastore_api._add_routing_info((), request)
    return _datastore_api.make_call(
        "commit", request, retries=0, timeout=timeout, metadata=metadata
    )
