"""The contract of every lease store, as tests to subclass.

    class TestMyStore(LeaseStoreContract):
        @pytest.fixture
        def store(self) -> Iterator[MyStore]:
            store = MyStore(…)
            yield store
            store.close()

The subclass gives the `store` fixture: a store without any records (with a prefix of its own, say)
for each test. `userlock.testing.contract.base` lists what it may override, for stores whose time is
moved by hand or that cannot tell the time. Its three parts can be subclassed apart:

    VerbContract   each of the five verbs alone
    RaceContract   atomicity: threads that race
    TimeContract   times to live, and the grace that follows: about ten seconds with a real server

Three contracts are separate: `ForkContract` (for stores with connections; it needs a process that
survives a fork), `FenceContract` (for stores with `fences = True`) and `WakeContract` (for stores
with `wake_ups`). `EngineContract` and `EngineForkContract` are for engines of the outbox
(`userlock.testing.contract.engines`).
"""

from __future__ import annotations

from userlock.testing.contract.engines import EngineContract, EngineForkContract
from userlock.testing.contract.extras import FenceContract, WakeContract
from userlock.testing.contract.races import ForkContract, RaceContract
from userlock.testing.contract.times import TimeContract
from userlock.testing.contract.verbs import VerbContract

__all__ = [
    "EngineContract",
    "EngineForkContract",
    "FenceContract",
    "ForkContract",
    "LeaseStoreContract",
    "RaceContract",
    "TimeContract",
    "VerbContract",
    "WakeContract",
]


class LeaseStoreContract(VerbContract, RaceContract, TimeContract):
    """The promises of `userlock.lock.store.LeaseStore` within one process, as tests."""
