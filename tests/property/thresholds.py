"""Low thresholds of the emulator, so that few entities exercise every access path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from userlock_emulator.datastore import access, query_runner


@pytest.fixture(autouse=True, scope="module")
def low_thresholds() -> Iterator[None]:
    """Lower the thresholds. Modules that want it import this fixture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_runner, "FEW", 6)
        patch.setattr(access, "FEW", 6)
        patch.setattr(query_runner, "VERY_FEW", 1)
        patch.setattr(query_runner, "PROBES_PER_LOAD", 1)
        yield
