"""The recipes for Celery and Dramatiq keep the contract of engines, with real workers on Redis."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import pytest

from tests.contract.outbox.engines.workers import Workers
from userlock.outbox.engines import Engine
from userlock.testing import EngineContract, EngineForkContract

pytestmark = pytest.mark.slow


class _Recipe(EngineContract, EngineForkContract):
    knows_names = False
    backend: Workers

    def delivered(self, engine: Engine) -> Sequence[str]:
        return self.backend.delivered()

    def stopped(self, engine: Engine) -> AbstractContextManager[object]:
        return self.backend.redis.paused()


@pytest.fixture(scope="module")
def celery_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    command = [sys.executable, "-m", "celery", "-A", "examples.outbox.celery_engine", "worker"]
    found = Workers(
        tmp_path_factory.mktemp("celery"),
        lambda _: [*command, "--pool", "threads", "--concurrency", "2", "--loglevel", "INFO"],
        env={"CELERY_BROKER": "redis://{redis}/0"},
        ready=" ready.",
    )
    yield found
    found.stop()


class TestCelery(_Recipe):
    #: Celery keeps delays in the worker, by seconds of its wall clock.
    early_seconds = 0.1

    @pytest.fixture
    def engine(self, celery_workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
        self.backend = celery_workers
        monkeypatch.setenv("CELERY_BROKER", celery_workers.redis.url)
        recipe = importlib.import_module("examples.outbox.celery_engine")
        engine = recipe.CeleryEngine(recipe.make_app)
        yield engine
        engine.close()


@pytest.fixture(scope="module")
def dramatiq_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    found = Workers(
        tmp_path_factory.mktemp("dramatiq"),
        lambda _: [
            *(sys.executable, "-m", "dramatiq", "--processes", "1", "--threads", "2"),
            "examples.outbox.dramatiq_engine:broker",
        ],
        env={"DRAMATIQ_BROKER": "redis://{redis}/0"},
        ready="ready for action",
    )
    yield found
    found.stop()


class TestDramatiq(_Recipe):
    early_seconds = 0.1

    @pytest.fixture
    def engine(
        self, dramatiq_workers: Workers, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Engine]:
        self.backend = dramatiq_workers
        monkeypatch.setenv("DRAMATIQ_BROKER", dramatiq_workers.redis.url)
        recipe = importlib.import_module("examples.outbox.dramatiq_engine")
        engine = recipe.DramatiqEngine()
        yield engine
        engine.close()
