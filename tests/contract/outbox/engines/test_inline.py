"""The contract of engines, kept by the threads of this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from userlock.outbox.engines import Engine
from userlock.outbox.engines.inline import InlineEngine
from userlock.testing import EngineContract


class TestInline(EngineContract):
    knows_names = False

    @pytest.fixture
    def engine(self) -> Iterator[InlineEngine]:
        self.keys: list[str] = []
        engine = InlineEngine()
        engine.connect(self.keys.append)
        yield engine
        engine.close()

    def delivered(self, engine: Engine) -> Sequence[str]:
        return list(self.keys)
