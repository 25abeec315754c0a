"""A pytest plugin, active wherever the emulator is installed.

    def test_saving(datastore_emulator):
        client = datastore.Client()  # finds the empty emulator by the environment

    def test_of_its_own(datastore_database):
        client = datastore.Client(database=datastore_database)  # which no other test uses

    def test_sending(tasks_emulator):
        ...                          # its address is in CLOUD_TASKS_EMULATOR_HOST

It costs next to nothing unless its fixtures are used. There is one emulator for each session, and
with pytest-xdist for each worker: workers share nothing.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import userlock_emulator
from userlock_emulator import tasks


@pytest.fixture(scope="session")
def datastore_emulator_options() -> dict[str, Any]:
    """Return the arguments of `userlock_emulator.start`; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def datastore_emulator_session(
    datastore_emulator_options: dict[str, Any],
) -> "Iterator[userlock_emulator.Emulator]":
    """Provide one emulator for all tests of a run, including the data that they leave."""
    with userlock_emulator.start(**datastore_emulator_options) as running:
        yield running


@pytest.fixture
def datastore_emulator(
    datastore_emulator_session: "userlock_emulator.Emulator", monkeypatch: pytest.MonkeyPatch
) -> "userlock_emulator.Emulator":
    """Provide an empty emulator, which client libraries find through the environment."""
    datastore_emulator_session.reset()
    for name, value in datastore_emulator_session.env.items():
        monkeypatch.setenv(name, value)
    return datastore_emulator_session


@pytest.fixture(scope="session")
def _database_numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def datastore_database(
    datastore_emulator_session: "userlock_emulator.Emulator",
    _database_numbers: Iterator[int],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Provide the name of a database that no other test uses, and the environment for clients.

    Nothing is deleted: data of other databases, as of a fixture for the whole module, stays. So
    tests may run at the same time in threads of one process. Faults hold for all databases.
    """
    for name, value in datastore_emulator_session.env.items():
        monkeypatch.setenv(name, value)
    return f"test-{next(_database_numbers)}"


@pytest.fixture(scope="session")
def tasks_emulator_options() -> dict[str, Any]:
    """Return the arguments of `userlock_emulator.tasks.start`; override it to change them."""
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
