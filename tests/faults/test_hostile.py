"""Slow, endless and malformed replies at each step of each protocol.

Each call ends in time as `StoreUnavailable`, takes a bounded number of bytes, and hurts no other
server, service or later call.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.hostile import Reply
from userlock.lock.service import LockService
from userlock.lock.store import LeaseStore
from userlock.stores.stream import MOST_BYTES

#: Far less than the slow replies take, and far more than the store's time-outs.
BOUND_SECONDS = 2.0
#: What a client may take of a reply, and the buffers of both ends.
BOUND_BYTES = MOST_BYTES + (24 << 20)
RECORD = b"first"
#: Goes on for hours.
SLOW = {
    "meta": Reply("slow", b"VA 900000 c7 t60\r\n", b"x", slow=True),
    "text": Reply("slow", b"VALUE key 0 900000 7\r\n", b"x", slow=True),
    "redis": Reply("slow", b"$900000\r\n", b"x", slow=True),
}
#: Begins no reply of any kind, and never ends a line.
SLOW_LINE = Reply("a slow line", repeat=b"x", slow=True)
HUGE = {
    "meta": Reply("huge", b"VA 300000000 c7 t60\r\n", b"x" * 65_536),
    "text": Reply("huge", b"VALUE key 0 300000000 7\r\n", b"x" * 65_536),
    "redis": Reply("huge", b"$300000000\r\n", b"x" * 65_536),
}
READS = {"meta": b"mg ", "text": b"gets ", "redis": b"EVAL"}
KINDS = tuple(READS)

Verb = Callable[[LeaseStore, str, object], object]
VERBS: dict[str, Verb] = {
    "create": lambda store, lock_id, version: store.create(lock_id, b"second", 60),
    "read": lambda store, lock_id, version: store.read(lock_id),
    "read in a hurry": lambda store, lock_id, version: store.read(lock_id, hurry=True),
    "swap": lambda store, lock_id, version: store.swap(lock_id, version, b"next", 60),
    "rewrite": lambda store, lock_id, version: store.rewrite(lock_id, version, b"next"),
    "remove": lambda store, lock_id, version: store.remove(lock_id, version),
    "append": lambda store, lock_id, version: store.append(lock_id, b"\nline"),
}


def assert_undegraded(service: LockService, lock_id: str) -> None:
    lease = service.acquire(lock_id)
    assert not lease.degraded
    service.release(lease)
