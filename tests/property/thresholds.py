"""Few entities are many to the emulator, so that queries go each way to their results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emulator.datastore import access, query_runner


@pytest.fixture(autouse=True, scope="module")
def low_thresholds() -> Iterator[None]:
    """To be imported by the modules that want it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_runner, "FEW", 6)
        patch.setattr(access, "FEW", 6)
        patch.setattr(query_runner, "VERY_FEW", 1)
        patch.setattr(query_runner, "PROBES_PER_LOAD", 1)
        yield
