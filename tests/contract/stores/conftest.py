"""Time-outs for a busy machine, which is no outage."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a read in a hurry more time than its 0.1 s."""
    monkeypatch.setattr("userlock.stores.pool.HURRY_TIMEOUT", 5.0)
