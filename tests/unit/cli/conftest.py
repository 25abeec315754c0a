"""Provide a terminal on an empty store in memory."""

from __future__ import annotations

import pytest

from tests.unit.cli.terminal import Terminal
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


@pytest.fixture
def terminal(clock: ManualClock) -> Terminal:
    return Terminal(MemoryStore(clock=clock), clock)
