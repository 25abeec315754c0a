"""A pytest plugin, there wherever the emulator is installed.

    def test_saving(datastore_emulator):
        client = datastore.Client()  # finds it by the environment, and it is empty

Whoever does not use its fixtures pays next to nothing for it.
"""

from collections.abc import Iterator
from typing import Any

import pytest

import emulator


@pytest.fixture(scope="session")
def datastore_emulator_options() -> dict[str, Any]:
    """The arguments of `emulator.start`; to be overridden."""
    return {}


@pytest.fixture(scope="session")
def datastore_emulator_session(
    datastore_emulator_options: dict[str, Any],
) -> "Iterator[emulator.Emulator]":
    """One emulator for all tests of a run, with what they have left in it."""
    with emulator.start(**datastore_emulator_options) as running:
        yield running


@pytest.fixture
def datastore_emulator(
    datastore_emulator_session: "emulator.Emulator", monkeypatch: pytest.MonkeyPatch
) -> "emulator.Emulator":
    """An empty emulator, which client libraries find through the environment."""
    datastore_emulator_session.reset()
    for name, value in datastore_emulator_session.env.items():
        monkeypatch.setenv(name, value)
    return datastore_emulator_session
