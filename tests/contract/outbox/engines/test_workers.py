"""RQ, and the recipes for Celery and Dramatiq: the contract of engines, with real workers."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from sample_app.stack.children import Child
from tests.contract.outbox.engines import recording
from tests.servers import RedisServer
from userlock.outbox.engines import Engine, open_engine
from userlock.testing import EngineContract, EngineForkContract

ROOT = Path(__file__).parents[4]


class Kind(NamedTuple):
    """A library with workers.

    Attributes:
        open: makes its engine, from the Redis's host and port.
        worker: the arguments of Python for a worker; ADDRESS stands for the host and port.
        ready: in the worker's log, once it takes messages.
        broker: a variable of the worker with the Redis's URL.
        knows_names, early_seconds: as the contract has them.
    """

    open: Callable[[str], Any]
    worker: str
    ready: str
    broker: str
    knows_names: bool
    early_seconds: float


def _recipe(name: str) -> Any:
    return importlib.import_module(f"examples.outbox.{name}_engine")


KINDS = {
    "rq": Kind(
        lambda address: open_engine(f"rq://{address}/0"),
        "-m rq.cli worker --with-scheduler "
        "--worker-class userlock.outbox.engines.rq.SimpleWorker --url redis://ADDRESS/0 userlock",
        "Listening on userlock",
        "UNUSED",
        knows_names=True,
        early_seconds=0.05,
    ),
    "celery": Kind(
        lambda _: _recipe("celery").CeleryEngine(_recipe("celery").make_app),
        "-m celery -A examples.outbox.celery_engine worker --pool threads --concurrency 2 "
        "--loglevel INFO",
        " ready.",
        "CELERY_BROKER",
        knows_names=False,
        early_seconds=0.1,  # it keeps delays by seconds of its wall clock
    ),
    "dramatiq": Kind(
        lambda _: _recipe("dramatiq").DramatiqEngine(),
        "-m dramatiq --processes 1 --threads 2 examples.outbox.dramatiq_engine:broker",
        "ready for action",
        "DRAMATIQ_BROKER",
        knows_names=False,
        early_seconds=0.1,
    ),
}


class Workers:
    """A Redis, and a worker that notes what it is given."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.kind = kind
        self.redis = RedisServer(folder)
        log_file = folder / "worker.log"
        self._child = Child(
            "the worker",
            [sys.executable, *kind.worker.replace("ADDRESS", self.redis.address).split()],
            answers=lambda: (
                log_file.exists() and kind.ready in log_file.read_text(errors="replace")
            ),
            log_file=log_file,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
                "USERLOCK_OUTBOX": f"{recording.__name__}:outbox",
                recording.REDIS: self.redis.url,
                kind.broker: f"redis://{self.redis.address}/0",
            },
        )
        self._child.start()
        self._child.wait_until_it_answers(60)
        self._client = redis.Redis.from_url(self.redis.url)

    def delivered(self) -> list[str]:
        """Return the keys that the worker was given until now."""
        keys: Any = self._client.lrange(recording.DELIVERED, 0, -1)
        return [each.decode() for each in keys]

    def stop(self) -> None:
        """Stop both."""
        self._client.close()
        self._child.stop()
        self.redis.stop()


@pytest.fixture(
    scope="module",
    params=["rq", *(pytest.param(each, marks=pytest.mark.slow) for each in ("celery", "dramatiq"))],
)
def workers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    found = Workers(tmp_path_factory.mktemp(request.param), KINDS[request.param])
    yield found
    found.stop()


class TestWorkers(EngineContract, EngineForkContract):
    @pytest.fixture
    def engine(self, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
        self.workers, kind = workers, workers.kind
        self.knows_names, self.early_seconds = kind.knows_names, kind.early_seconds
        monkeypatch.setenv(kind.broker, workers.redis.url)
        engine = kind.open(workers.redis.address)
        yield engine
        engine.close()

    def delivered(self, engine: Engine) -> Sequence[str]:
        return self.workers.delivered()

    def stopped(self, engine: Engine) -> AbstractContextManager[object]:
        return self.workers.redis.paused()
