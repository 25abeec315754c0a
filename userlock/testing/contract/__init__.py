"""The contract of every lease store, as tests to subclass.

    class TestMyStore(LeaseStoreContract):
        @pytest.fixture
        def store(self) -> Iterator[MyStore]:
            store = MyStore(…)
            yield store
            store.close()

The subclass gives the `store` fixture: a store without any records (with a
prefix of its own, say) for each test. What it may override, for stores whose
time is moved by hand or that cannot tell the time, is listed in
`userlock.testing.contract.base`.

Its three parts can be subclassed apart, so that those that wait for real time
to pass (`TimeContract`: about ten seconds with a real server, nothing with a
manual clock) can be marked and left for later:

    VerbContract   what each of the five primitives does, alone
    RaceContract   that they are atomic: threads against one another
    TimeContract   times to live, and the grace that follows

Three are not part of the whole. `ForkContract`: see there for the reason; a store
that keeps connections should be subjected to it as well. `BatchContract`: for a
store that says `batches`. `RewriteContract`: for one that can `rewrite`.
"""

from __future__ import annotations

from userlock.testing.contract.batches import BatchContract
from userlock.testing.contract.forks import ForkContract
from userlock.testing.contract.races import RaceContract
from userlock.testing.contract.rewriting import RewriteContract
from userlock.testing.contract.times import TimeContract
from userlock.testing.contract.verbs import VerbContract

__all__ = [
    "BatchContract",
    "ForkContract",
    "LeaseStoreContract",
    "RaceContract",
    "RewriteContract",
    "TimeContract",
    "VerbContract",
]


class LeaseStoreContract(VerbContract, RaceContract, TimeContract):
    """The promises of `userlock.lock.store.LeaseStore` within one process, as tests."""
