"""Fencing without `base_version`: compare and write in a short transaction.

For what was read without its version, and for servers that take no notice of a
`base_version`. Within a transaction nobody else can write between the look and
the commit:

    begin      look: is it as it was read?      commit those that are
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.api_core import exceptions as errors
from google.cloud.ndb import _datastore_api, tasklets

from userlock.ndb.hooks.calls import Looked, again, key_in, look_up, may_have_landed, serialized
from userlock.ndb.hooks.commits import (
    MAX_GROUPS,
    Doubt,
    Sent,
    answered,
    paired,
    refuse,
    settle,
    start,
)
from userlock.ndb.hooks.versions import fingerprint
from userlock.ndb.watch import Write


def found_version(write: Write, looked: Looked, key_pb: Any) -> int | None:
    """The version that is there, in the terms of the write's own; None when there is none."""
    result = looked.found.get(serialized(key_pb))
    if result is None:
        return None
    return fingerprint(result.entity) if write.base_version < 0 else int(result.version)


def batch_of_compared(
    batch_class: Any, put: Callable[[Any, Any], Any], delete: Callable[[Any, Any], Any]
) -> Any:
    """The class of batches whose writes are compared first, sent beside the ordinary ones."""

    class Compared(batch_class):
        """Writes that know what they build on, and cannot tell the server."""

        def full(self) -> bool:
            return len(self.mutations) >= MAX_GROUPS

        def put(self, entity_pb: Any) -> Any:
            return put(self, entity_pb)

        def delete(self, key: Any) -> Any:
            return delete(self, key)

        def idle_callback(self) -> None:
            start(_send, paired(self.mutations, self.futures), self.options, Doubt())

    return Compared


@tasklets.tasklet
def _send(batch: list[Sent], options: Any, doubt: Doubt) -> Any:
    rpc = again(lambda: _compare_and_commit(batch, options, doubt), options.retries, doubt.note)
    yield answered(rpc)
    if rpc.exception() is not None:
        yield from settle(batch, rpc, doubt)


@tasklets.tasklet
def _compare_and_commit(batch: list[Sent], options: Any, doubt: Doubt) -> Any:
    """One try. Those that are refused are told so, the others go on to the next try."""
    left = [sent for sent in batch if not sent.future.done()]
    transaction = yield _datastore_api.begin_transaction(False, retries=0, timeout=options.timeout)
    try:
        looked = yield look_up([key_in(sent.mutation) for sent in left], transaction)
        good, refused = _compared(left, looked)
        rpc = _datastore_api._datastore_commit(
            [sent.mutation for sent in good], transaction, retries=0, timeout=options.timeout
        )
        yield rpc
    except Exception as error:
        if not may_have_landed(error):
            yield _forget(transaction)
        raise
    yield from refuse(refused, len(good), doubt)
    yield from settle(good, rpc, doubt)


def _compared(batch: list[Sent], looked: Looked) -> tuple[list[Sent], list[tuple[Sent, int]]]:
    """Those that are as they were read, and those that are not, with what is there."""
    good: list[Sent] = []
    refused: list[tuple[Sent, int]] = []
    for sent in batch:
        write = sent.write
        assert write is not None
        found = found_version(write, looked, key_in(sent.mutation))
        if found == write.base_version or (found is None and "delete" in sent.mutation):
            good.append(sent)
        else:
            refused.append((sent, max(found or 0, 0)))
    return good, refused


@tasklets.tasklet
def _forget(transaction: bytes) -> Any:
    """Roll back, so that nobody waits for it. It would expire by itself."""
    try:
        yield _datastore_api._datastore_rollback(transaction, retries=0)
    except errors.GoogleAPICallError:
        return
