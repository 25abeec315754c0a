"""Calls of ours to Datastore, behind ndb's back.

ndb's own retries (`_retry.retry_async`) note in the context that one is under
way, and while that note stands turn every other error of a call into a
`NestedRetryException`, which has its text alone, and which makes ndb run the
whole transaction again. What is called here is neither noted nor disguised.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from google.api_core import exceptions as errors
from google.api_core import retry as core_retry
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.ndb import _datastore_api, _retry, tasklets

from userlock.words import counted

_MAX_LOOKUP_KEYS = 1000


def _delays() -> Iterator[float]:
    """As ndb waits between tries, in seconds."""
    delays: Iterator[float] = core_retry.exponential_sleep_generator(
        _retry._DEFAULT_INITIAL_DELAY,
        _retry._DEFAULT_MAXIMUM_DELAY,
        _retry._DEFAULT_DELAY_MULTIPLIER,
    )
    return delays


@tasklets.tasklet
def again(
    call: Callable[[], Any],
    retries: int | None = None,
    failed: Callable[[Exception], None] = lambda error: None,
    unless: type[Exception] | tuple[type[Exception], ...] = (),
    first: Any = None,
) -> Any:
    """Make a call, and make it again after a transient error, as ndb does.

    Args:
        call: gives the future of one try.
        retries: how many more tries there are; None: as many as ndb makes.
        failed: told of the error of each try that is not the last word.
        unless: errors that are not worth another try.
        first: the future of the first try, if that has been made.

    Raises:
        RetryError: no try is left. ndb does not run a transaction again for it.
    """
    most = _retry._DEFAULT_RETRIES if retries is None else retries
    if not most:
        result = yield first or call()
        return result
    for delay in itertools.islice(_delays(), most + 1):
        try:
            result = yield first or call()
        except Exception as error:
            if not _retry.is_transient_error(error) or isinstance(error, unless):
                raise
            first, last = None, error
            failed(error)
        else:
            return result
        yield tasklets.sleep(delay)
    raise errors.RetryError(f"it failed {counted(most + 1, 'time')}", cause=last)


#: A commit that ends with one of these may have been applied all the same.
DOUBTFUL = (
    errors.ServiceUnavailable,
    errors.InternalServerError,
    errors.Unknown,
    errors.GatewayTimeout,  # DEADLINE_EXCEEDED
    errors.Cancelled,
)


def may_have_landed(error: BaseException | None) -> bool:
    """Whether a commit that ends with this error may have been applied all the same."""
    if isinstance(error, errors.RetryError):
        error = error.cause
    return isinstance(error, DOUBTFUL)


class Looked(NamedTuple):
    """What Datastore has, by serialized key.

    Attributes:
        found: EntityResult messages.
        missing: EntityResult messages too, with the snapshot's version.
    """

    found: dict[bytes, Any]
    missing: dict[bytes, Any]


def serialized(key_pb: Any) -> bytes:
    """The same bytes for the same key, for a message of ndb's."""
    raw: bytes = key_pb._pb.SerializeToString(deterministic=True)
    return raw


@tasklets.tasklet
def look_up(keys: Sequence[Any], transaction: bytes | None = None) -> Any:
    """Look entities up past all caches and hooks, once. Gives a `Looked`."""
    options = datastore_types.ReadOptions(transaction=transaction)
    looked = Looked({}, {})
    left = list(keys)
    while left:
        answer = yield _datastore_api._datastore_lookup(left[:_MAX_LOOKUP_KEYS], options, retries=0)
        for results, into in (
            (answer._pb.found, looked.found),
            (answer._pb.missing, looked.missing),
        ):
            for result in results:
                into[result.entity.key.SerializeToString(deterministic=True)] = result
        left = [*answer.deferred, *left[_MAX_LOOKUP_KEYS:]]
    return looked


def key_in(mutation: Any) -> Any:
    """The key that a mutation is for."""
    if "delete" in mutation:
        return mutation.delete
    return (mutation.insert or mutation.upsert).key
