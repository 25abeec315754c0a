"""Test applications, and test lease stores.

For applications: a pytest plugin (`userlock.testing.plugin`), which pytest finds by itself, with
the fixtures `userlock_service`, `held_lock`, `allow_unlocked` and `userlock_faults`. The second and
third can be imported from here as well.

For stores: a clock driven by hand, and the contract that every lease store keeps, as tests
(`userlock.testing.contract`). `EngineContract` is the same for engines of the outbox.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from userlock.testing.locks import allow_unlocked, held_lock, make_claim

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
    "make_claim": "locks",
    "ManualClock": "clock",
    "LockFaults": "faults",
    "allow_unlocked": "locks",
    "held_lock": "locks",
}


def __getattr__(name: str) -> object:
    # Imported when used: pytest imports this package in every run, and a clock needs no pytest.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'contract')}")
    return getattr(home, name)
