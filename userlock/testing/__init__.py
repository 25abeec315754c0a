"""Test applications, and test lease stores.

For applications: a pytest plugin (`userlock.testing.plugin`), which pytest finds
by itself, with the fixtures `userlock_service`, `held_lock`, `allow_unlocked`
and `userlock_faults`. `held_lock` and `allow_unlocked` can be imported from here
as well.

For stores: a clock driven by hand, and the contract that every lease store
keeps. `LeaseStoreContract` is a class of pytest tests:

    class TestMyStore(LeaseStoreContract):
        @pytest.fixture
        def store(self): return MyStore(…)

`userlock.testing.contract` lists what it needs, and how long it takes.
`EngineContract` is the same for engines of the outbox.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from userlock.testing.claims import make_claim
    from userlock.testing.clock import ManualClock
    from userlock.testing.contract import (
        EngineContract,
        EngineForkContract,
        FenceContract,
        ForkContract,
        LeaseStoreContract,
        RaceContract,
        TimeContract,
        VerbContract,
        WakeContract,
    )
    from userlock.testing.faults import LockFaults
    from userlock.testing.locks import allow_unlocked, held_lock

__all__ = [
    "EngineContract",
    "EngineForkContract",
    "FenceContract",
    "ForkContract",
    "LeaseStoreContract",
    "LockFaults",
    "ManualClock",
    "RaceContract",
    "TimeContract",
    "VerbContract",
    "WakeContract",
    "allow_unlocked",
    "held_lock",
    "make_claim",
]

_HOMES = {
    "make_claim": "claims",
    "ManualClock": "clock",
    "LockFaults": "faults",
    "allow_unlocked": "locks",
    "held_lock": "locks",
}


def __getattr__(name: str) -> object:
    # Imported when used: pytest imports this package for its plugin in every run, and a clock
    # should not need pytest, as the contract does.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'contract')}")
    return getattr(home, name)
