"""A pytest plugin, active wherever the emulator is installed.

    def test_saving(datastore_emulator):
        client = datastore.Client()  # finds the empty emulator by the environment

    def test_sending(tasks_emulator):
        ...                          # its address is in CLOUD_TASKS_EMULATOR_HOST

It costs next to nothing unless its fixtures are used.
"""

from collections.abc import Iterator
from typing import Any

import pytest

import emulator
from emulator import tasks


@pytest.fixture(scope="session")
def datastore_emulator_options() -> dict[str, Any]:
    """Return the arguments of `emulator.start`; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def datastore_emulator_session(
    datastore_emulator_options: dict[str, Any],
) -> "Iterator[emulator.Emulator]":
    """Provide one emulator for all tests of a run, including the data that they leave."""
    with emulator.start(**datastore_emulator_options) as running:
        yield running


@pytest.fixture
def datastore_emulator(
    datastore_emulator_session: "emulator.Emulator", monkeypatch: pytest.MonkeyPatch
) -> "emulator.Emulator":
    """Provide an empty emulator, which client libraries find through the environment."""
    datastore_emulator_session.reset()
    for name, value in datastore_emulator_session.env.items():
        monkeypatch.setenv(name, value)
    return datastore_emulator_session


@pytest.fixture(scope="session")
def tasks_emulator_options() -> dict[str, Any]:
    """Return the arguments of `emulator.tasks.start`; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def tasks_emulator_session(
    tasks_emulator_options: dict[str, Any],
) -> "Iterator[tasks.CloudTasks]":
    """Provide one Cloud Tasks emulator for all tests of a run, with the tasks that they leave."""
    with tasks.start(**tasks_emulator_options) as running:
        yield running


@pytest.fixture
def tasks_emulator(
    tasks_emulator_session: "tasks.CloudTasks", monkeypatch: pytest.MonkeyPatch
) -> "Iterator[tasks.CloudTasks]":
    """Provide an empty Cloud Tasks emulator, whose address is in the environment.

    Tasks that a test leaves are not delivered after it.
    """
    tasks_emulator_session.reset()
    for name, value in tasks_emulator_session.env.items():
        monkeypatch.setenv(name, value)
    yield tasks_emulator_session
    tasks_emulator_session.reset()
