"""For tests: a clock driven by hand, and the contract that every lease store keeps.

`LeaseStoreContract` is a class of pytest tests, for whoever writes a store:

    class TestMyStore(LeaseStoreContract):
        @pytest.fixture
        def store(self): return MyStore(…)

See `userlock.testing.contract` for what it asks for, and how long it takes.
"""

from __future__ import annotations

from userlock.testing.claims import granted, make_claim
from userlock.testing.clock import ManualClock
from userlock.testing.contract import (
    ForkContract,
    LeaseStoreContract,
    RaceContract,
    TimeContract,
    VerbContract,
)

__all__ = [
    "ForkContract",
    "LeaseStoreContract",
    "ManualClock",
    "RaceContract",
    "TimeContract",
    "VerbContract",
    "granted",
    "make_claim",
]
