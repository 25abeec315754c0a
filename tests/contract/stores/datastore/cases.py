"""Each verb in each state of the row that makes it send other RPCs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import grpc
import pytest

from tests.contract.stores.datastore.conftest import SERVER_CLOCK
from tests.contract.stores.datastore.faulty import Fault, FaultyClient
from userlock.lock.store import GRACE_SECONDS, StoreUnavailable
from userlock.stores.datastore import DatastoreStore


class Case(NamedTuple):
    """A verb, in a state of the row that makes it send certain RPCs."""

    verb: Callable[[DatastoreStore, object], object]
    rpcs: list[str]
    living: bool = False
    dead: bool = False
    succeeds: bool = True

    def prepare(self, store: DatastoreStore) -> object:
        version = None
        if self.living or self.dead:
            version = store.create("ann", b"first", 60 if self.living else 1)
        if self.dead:
            SERVER_CLOCK.ahead += 1 + GRACE_SECONDS + 0.1
        return version


CASES = {
    "create": Case(lambda store, _: store.create("ann", b"mine", 60), ["commit"]),
    "create, contended": Case(
        lambda store, _: store.create("ann", b"mine", 60),
        ["commit", "lookup"],
        living=True,
        succeeds=False,
    ),
    "create, over a dead row": Case(
        lambda store, _: store.create("ann", b"mine", 60),
        ["commit", "lookup", "commit"],
        dead=True,
    ),
    "read": Case(lambda store, _: store.read("ann"), ["lookup"], living=True),
    "read, nothing": Case(lambda store, _: store.read("ann"), ["lookup"], succeeds=False),
    "read, a dead row": Case(
        lambda store, _: store.read("ann"), ["lookup", "commit"], dead=True, succeeds=False
    ),
    "swap": Case(
        lambda store, version: store.swap("ann", version, b"mine", 60), ["commit"], living=True
    ),
    "remove": Case(lambda store, version: store.remove("ann", version), ["commit"], living=True),
    "append": Case(
        lambda store, _: store.append("ann", b"\nline"), ["lookup", "commit"], living=True
    ),
    "append, nothing": Case(
        lambda store, _: store.append("ann", b"\nline"), ["lookup"], succeeds=False
    ),
}

#: Each RPC of each verb; the one that buries a dead row is no concern of who reads it.
STEPS = [
    pytest.param(case, step, id=f"{name}, RPC {step + 1}")
    for name, case in CASES.items()
    for step in range(len(case.rpcs))
    if (name, step) != ("read, a dead row", 1)
]


def fails(
    faulty: FaultyClient, step: int, fault: Fault, verb: Callable[[], object]
) -> StoreUnavailable:
    """Return the error of the verb when that RPC, and all after it, fail."""
    faulty.calls.clear()
    faulty.faults[:] = [None] * step + [fault] * 1000
    with pytest.raises(StoreUnavailable) as caught:
        verb()
    faulty.faults.clear()
    assert isinstance(caught.value.__cause__, grpc.RpcError)
    return caught.value
