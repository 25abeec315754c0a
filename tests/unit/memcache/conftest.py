"""Fixtures of the embedded memcached's unit tests."""

from __future__ import annotations

import pytest

from tests.unit.memcache.support import Talk


@pytest.fixture
def talk() -> Talk:
    return Talk()
