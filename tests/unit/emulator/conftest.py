"""Fixtures of the emulator's unit tests."""

from collections.abc import Iterator

import pytest

from tests.unit.emulator import subject
from tests.unit.emulator.subject import Subject


@pytest.fixture
def engine() -> Iterator[Subject]:
    with subject.subject() as running:
        yield running
