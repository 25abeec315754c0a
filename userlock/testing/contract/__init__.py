"""Test a lease store: its contract, as classes of pytest tests to subclass.

    class TestMyStore(LeaseStoreContract):
        @pytest.fixture
        def store(self) -> Iterator[MyStore]:
            store = MyStore(…)
            yield store
            store.close()

The subclass provides the `store` fixture: for each test, a store without any
records (for example with its own prefix). `userlock.testing.contract.base` lists
the methods that a subclass may override if its store's time is moved by hand, or
if the store cannot tell the time.

The contract's three parts can be subclassed separately, so that the part that
waits for real time can be marked as slow (`TimeContract`: about ten seconds with
a real server, none with a manual clock):

    VerbContract   each of the five primitives, in sequence
    RaceContract   their atomicity: concurrent threads
    TimeContract   times to live, and the grace that follows

Three more classes are not part of the whole. `ForkContract` is for stores that
keep connections; its docstring says why it stands apart. `BatchContract` is for a
store that is a `BatchStore`, `RewriteContract` for a `RewritingStore`.
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
    """Test the promises of `userlock.lock.store.LeaseStore` within one process."""
