"""Leases in App Engine's bundled memcache (extra `appengine`).

For apps on App Engine standard that have `app_engine_apis: true` and `wrap_wsgi_app`. The service
has add, get and compare-and-swap; there is no append, no compare-and-delete, and a swap always
begins a new time to live. So the value has what the service does not remember:

    userlock/1 9f3a5c0d11e2b7a4 1763640060123\n      a name for this state; when it ends
    ["4f01","interactive",...                       the record

`create` adds. `swap`, `remove` and `append` get the value, compare its name with the version, and
swap it by the number that came with it, which is relied on between two calls only. The name is
random and part of the value, so a version means the same also after the service was flushed or
restarted. `remove` swaps in a tombstone that lives for a second; it counts as no record, and
`create` swaps it for a new one. An uncontended lock costs three calls of the service.

Time. The end in the value is by the clock of the machine that wrote it; the service drops the
value, and readers call it lapsed, by their own. While all three agree within `SKEW_SECONDS`, a
record never lapses or goes early, and does both up to two of them late. Clocks that differ by more
can end a lease early.

Limits. The service may drop any value at any time: two can then hold a lock, and the fencing
refuses the loser's write. Calls belong to a request: in other threads the SDK refuses them, which
is an outage to the lock. So take leases that are long enough for the request, without heartbeats.
The namespace of `namespace_manager` is not part of lock ids.

Source: the SDK, `google/appengine/api/memcache` and `runtime/default_api_stub.py` of
appengine-python-standard 3.1.0. Its `memcache.Client` answers a failed call like a miss, unpickles
every value, and keeps the numbers of swaps for all threads together, so it is not used.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import math
import os
import random
import re
from typing import Any, NamedTuple
from urllib.parse import SplitResult

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.store import GRACE_SECONDS, LeaseStore, Stored, StoreUnavailable
from userlock.signals import raise_interrupt
from userlock.stores import urls
from userlock.stores.keys import KeySpace

try:
    from google.appengine.api import memcache
    from google.appengine.runtime import apiproxy_errors
except ImportError as error:
    raise ImportError(
        "the App Engine memcache store needs the App Engine SDK: pip install 'userlock[appengine]'"
    ) from error

#: How long the service may take to answer a call, and when it has just been slow.
REPLY_SECONDS = 0.3
HURRIED_SECONDS = 0.1
#: By how much the clocks of the app's machines and of the service may differ.
SKEW_SECONDS = 1.0
#: For how long an append is tried while others change the record.
APPEND_SECONDS = 1.0

# The SDK gives the service's own deadline a second more, per attempt to connect.
_HANDOVER_SECONDS = 0.1
_TOMBSTONE = b"userlock/1 removed\n"
_TOMBSTONE_SECONDS = 1
_HEADER = re.compile(rb"userlock/1 ([0-9a-f]{16}) ([0-9]{1,14})\n")
_PLAIN_BYTES = memcache.TYPE_STR
_LAST_SECOND = 2**32 - 1
_MOST_CREATES = 3

_GetStatus = memcache.MemcacheGetResponse
_SetRequest = memcache.MemcacheSetRequest
_SetStatus = memcache.MemcacheSetResponse

#: The call was turned away, and nothing was done.
_REFUSED = (
    apiproxy_errors.ArgumentError,
    apiproxy_errors.CallNotFoundError,
    apiproxy_errors.CapabilityDisabledError,
    apiproxy_errors.FeatureNotEnabledError,
    apiproxy_errors.OverQuotaError,
    apiproxy_errors.RequestTooLargeError,
)


class _Value(NamedTuple):
    """A value of the service's."""

    name: bytes  # of this state; empty for a tombstone
    record: bytes
    ends_ms: int | None  # since 1970; None for another program's value
    number: int  # the service's for this state


class AppEngineStore(LeaseStore):
    """A lease store in App Engine's bundled memcache. Thread-safe.

    Survives a fork before the process's first call of an App Engine service:
    the SDK's threads do not come along.

    Values of other programs count as held by an unknown holder until they go:
    nothing is appended to them, and they are never unpickled.

    Args:
        prefix: begins every key, so that deployments can share an app.
        clock: for the wall time, and for waiting between attempts.
    """

    #: The SDK refuses calls from threads that serve no request.
    requests_only = True

    def __init__(self, *, prefix: str = "userlock", clock: Clock = SYSTEM_CLOCK) -> None:
        self._keys = KeySpace(prefix)
        self._clock = clock

    @classmethod
    def of_parts(cls, parts: SplitResult) -> AppEngineStore:
        """Return the store that `appengine://?prefix=NAME` names."""
        if parts.netloc or parts.path:
            raise urls.AddressError("it must look like appengine://?prefix=NAME")
        return cls(prefix=urls.options_of(parts, prefix="userlock")["prefix"])

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        key, ends_ms = self._keys.lock(lock_id), self._ends_ms(ttl_seconds)
        number = None
        for _ in range(_MOST_CREATES):
            name = _store(key, record, ends_ms, number)
            if name is not None:
                return name
            value = _look(key)
            if value is not None and value.name:
                return None
            number = None if value is None else value.number
        return None  # others come and go

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        value = _get(self._keys.lock(lock_id), HURRIED_SECONDS if hurry else REPLY_SECONDS)
        return self._stored(value) if value is not None and value.name else None

    def swap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        key, ends_ms = self._keys.lock(lock_id), self._ends_ms(ttl_seconds)
        value = _look(key)
        if value is None or value.name != version:
            return None
        return _store(key, record, ends_ms, value.number)

    def remove(self, lock_id: str, version: object) -> bool:
        key = self._keys.lock(lock_id)
        value = _look(key)
        if value is None or value.name != version:
            return False
        return _set(key, _TOMBSTONE, _TOMBSTONE_SECONDS, value.number)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        key = self._keys.lock(lock_id)
        give_up_at = self._clock.now() + APPEND_SECONDS
        delay = 0.001
        while True:
            value = _look(key)
            if value is None or not value.name:
                return None
            if value.ends_ms is None:
                return self._stored(value)
            longer = value._replace(record=value.record + line)
            # The same end again, as a date: the time to live stays as it was.
            name = _store(key, longer.record, value.ends_ms, value.number)
            if name is not None:
                return self._stored(longer._replace(name=name))
            if self._clock.now() >= give_up_at:
                raise StoreUnavailable(
                    f"App Engine memcache: others changed the record for {APPEND_SECONDS:g} s",
                    sent=False,
                )
            self._clock.sleep(random.uniform(0, delay))
            delay = min(2 * delay, 0.032)

    def close(self) -> None:
        """Do nothing: the SDK has the connections."""

    def _stored(self, value: _Value) -> Stored:
        if value.ends_ms is None:
            return Stored(value.record, value.name, lapsed=False)
        left = value.ends_ms / 1000 + SKEW_SECONDS - self._clock.wall()
        return Stored(value.record, value.name, left <= 0, left)

    def _ends_ms(self, ttl_seconds: float) -> int:
        return math.ceil((self._clock.wall() + ttl_seconds) * 1000)


def _look(key: bytes) -> _Value | None:
    """Return the value before a change. If that fails, the change is not sent."""
    try:
        return _get(key, REPLY_SECONDS)
    except StoreUnavailable as trouble:
        raise StoreUnavailable(trouble.reason, sent=False) from trouble.__cause__


def _get(key: bytes, seconds: float) -> _Value | None:
    """Return the value under the key; None when there is none."""
    response = memcache.MemcacheGetResponse()
    _call("Get", memcache.MemcacheGetRequest(key=[key], for_cas=True), response, seconds)
    for status in response.get_status:
        # Otherwise no item would only mean that the service could not look.
        if status not in (_GetStatus.HIT, _GetStatus.MISS):
            raise _failed(_GetStatus.GetStatusCode.Name(status))
    return _understood(response.item[0]) if response.item else None


def _understood(item: Any) -> _Value:
    if not item.cas_id:
        raise StoreUnavailable("App Engine memcache: it gives no numbers to swap by", sent=False)
    if item.flags == _PLAIN_BYTES:
        if item.value == _TOMBSTONE:
            return _Value(b"", b"", None, item.cas_id)
        match = _HEADER.match(item.value)
        if match is not None:
            return _Value(match[1], item.value[match.end() :], int(match[2]), item.cas_id)
    # Not ours. Named by its contents, so that an operator can remove it.
    digest = hashlib.sha256(b"%d %b" % (item.flags, item.value)).digest()
    return _Value(digest, b"?", None, item.cas_id)


def _set(key: bytes, value: bytes, expires: int, number: int | None) -> bool:
    """Swap the value of that number, or add one; return whether that was done."""
    request = memcache.MemcacheSetRequest()
    item = request.item.add(key=key, value=value, flags=_PLAIN_BYTES, expiration_time=expires)
    item.set_policy = _SetRequest.ADD if number is None else _SetRequest.CAS
    if number is not None:
        item.cas_id = number
        item.for_cas = True
    response = memcache.MemcacheSetResponse()
    _call("Set", request, response, REPLY_SECONDS)
    status = response.set_status[0] if response.set_status else _SetStatus.ERROR
    if status == _SetStatus.STORED:
        return True
    if status in (_SetStatus.NOT_STORED, _SetStatus.EXISTS):
        return False
    raise _failed(_SetStatus.SetStatusCode.Name(status))


def _call(method: str, request: Any, response: Any, seconds: float) -> None:
    """Call the service, and fill in `response`; `StoreUnavailable` if there is none."""
    # Any error in here has to do with the service or the app's set-up for it: a missing stub is an
    # AssertionError, a malformed answer a DecodeError.
    try:
        rpc = memcache.create_rpc(deadline=seconds)
        rpc.make_call(method, request, response)
    except Exception as error:
        raise_interrupt(error)
        needs = "calls need app_engine_apis in app.yaml, wrap_wsgi_app, and a request"
        raise StoreUnavailable(f"{_reason(error)} ({needs})", sent=False) from error
    future: concurrent.futures.Future[Any] | None = rpc.future
    patience = seconds + _HANDOVER_SECONDS
    # The SDK would wait without end: for one of its threads to be free (after a fork it counts
    # threads that have gone), and for attempts to connect.
    if future is not None and not concurrent.futures.wait([future], timeout=patience).done:
        sent = not future.cancel()
        raise StoreUnavailable(
            f"App Engine memcache: no answer within {patience:g} s", sent=sent, slow=sent
        )
    try:
        rpc.check_success()
    except _REFUSED as error:
        raise StoreUnavailable(_reason(error), sent=False) from error
    except Exception as error:
        raise_interrupt(error)
        # A proxy between the app and the service may still pass it on.
        raise StoreUnavailable(_reason(error), slow=True) from error


def _failed(status: str) -> StoreUnavailable:
    return StoreUnavailable(f"App Engine memcache: {status}", slow=status == "DEADLINE_EXCEEDED")


def _reason(error: Exception) -> str:
    # Other errors are of classes that say more than their texts.
    said = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    return f"App Engine memcache: {said}"


def _store(key: bytes, record: bytes, ends_ms: int, number: int | None = None) -> bytes | None:
    """Swap the value of that number, or add one; the new state's name, None if it was refused."""
    name = os.urandom(8).hex().encode()
    value = b"userlock/1 %b %d\n%b" % (name, ends_ms, record)
    # A reader's clock may be behind the service's, and finds the record lapsed `SKEW_SECONDS` after
    # its end: the time of grace comes after both.
    expires = min(math.ceil(ends_ms / 1000 + 2 * SKEW_SECONDS + GRACE_SECONDS), _LAST_SECOND)
    return name if _set(key, value, expires, number) else None


of_parts = AppEngineStore.of_parts
