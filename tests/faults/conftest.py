"""Keys of their own for the tests of broken servers."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex
