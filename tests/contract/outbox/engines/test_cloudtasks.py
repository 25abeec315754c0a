"""Cloud Tasks in the emulator: the contract of engines, and what arrives at a target."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from sample_app.stack import ports
from sample_app.stack.children import Child
from sample_app.stack.services import accepts
from tests.contract.emulator.tasks.target import Target
from userlock.outbox.authentication import AppEngineHeader, Refused
from userlock.outbox.engines import Engine, EngineError, Wake
from userlock.outbox.engines.cloudtasks import EMULATOR_VARIABLE, CloudTasksEngine, parse
from userlock.testing import EngineContract, EngineForkContract
from userlock_emulator import tasks

QUEUE = "projects/shop/locations/here/queues/jobs"
ACCOUNT = "jobs@shop.iam.gserviceaccount.com"


def url(server: Target, path: str = "") -> str:
    return f"cloudtasks://shop/here/jobs?target=http://{server.address}{path}&service_account={ACCOUNT}"


class Emulator:
    """The emulator in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = ports.any_free()
        self.child = Child(
            "the emulator of Cloud Tasks",
            [
                *(sys.executable, "-m", "userlock_emulator", "start", "--port", "0"),
                *("--tasks", str(self.port), "--tasks-queue", QUEUE),
            ],
            answers=lambda: accepts(self.port),
            log_file=folder / "emulator.log",
        )
        self.child.start()
        self.child.wait_until_it_answers()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        os.kill(self.child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.child.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    found = Emulator(tmp_path_factory.mktemp("tasks"))
    yield found
    found.child.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[Target]:
    with Target() as found:
        yield found


class TestCloudTasks(EngineContract, EngineForkContract):
    @pytest.fixture
    def engine(
        self, backend: Emulator, server: Target, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[CloudTasksEngine]:
        monkeypatch.setenv(EMULATOR_VARIABLE, f"127.0.0.1:{backend.port}")
        self.backend, self.server = backend, server
        engine = CloudTasksEngine(parse(url(server)))
        yield engine
        engine.close()

    def delivered(self, engine: Engine) -> Sequence[str]:
        return [each.body.decode() for each in self.server.received]

    def stopped(self, engine: Engine) -> AbstractContextManager[object]:
        return self.backend.stopped()


class TestInTheEmulator:
    """With an emulator in this process, whose faults can be used."""

    @pytest.fixture
    def emulator(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[tasks.CloudTasks]:
        with tasks.start(queues=[QUEUE]) as found:
            for name, value in found.env.items():
                monkeypatch.setenv(name, value)
            yield found

    @pytest.fixture
    def engine(self, emulator: tasks.CloudTasks, server: Target) -> Iterator[CloudTasksEngine]:
        server.received.clear()
        engine = CloudTasksEngine(parse(url(server)))
        yield engine
        engine.close()

    def test_the_endpoint_is_called_with_a_token_that_the_engine_s_caller_accepts(
        self, emulator: tasks.CloudTasks, engine: CloudTasksEngine, server: Target
    ) -> None:
        assert engine.wake([Wake("the-key", "name-1")], 5) == [None]
        emulator.wait_empty()
        (request,) = server.received
        assert (request.path, request.body) == ("/userlock/jobs", b"the-key")
        engine.caller.check(request.headers.get)
        with pytest.raises(Refused, match="no bearer token"):
            engine.caller.check(lambda name: None)
        elsewhere = CloudTasksEngine(parse(url(server, "/elsewhere"))).caller
        with pytest.raises(Refused) as refused:
            elsewhere.check(request.headers.get)
        assert refused.value.status == 401

    def test_a_lost_reply_is_an_error_and_the_next_one_with_that_name_is_none(
        self, emulator: tasks.CloudTasks, engine: CloudTasksEngine, server: Target
    ) -> None:
        emulator.faults.drop_reply()
        (error,) = engine.wake([Wake("a", "name-1")], 1.0)
        assert isinstance(error, EngineError)
        emulator.wait_empty()
        assert engine.wake([Wake("a", "name-1")], 5) == [None]
        emulator.wait_empty()
        assert [each.body for each in server.received] == [b"a"]


def test_app_engine(server: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    with tasks.start(queues=[QUEUE], app_engine={"worker": server.address}) as emulator:
        monkeypatch.setenv(EMULATOR_VARIABLE, emulator.host)
        engine = CloudTasksEngine(parse("cloudtasks://shop/here/jobs?service=worker"))
        server.received.clear()
        assert engine.wake([Wake("the-key", "name-1")], 5) == [None]
        emulator.wait_empty()
        engine.close()
    (request,) = server.received
    assert (request.path, request.body) == ("/userlock/jobs", b"the-key")
    assert isinstance(engine.caller, AppEngineHeader)
    with pytest.raises(Refused):
        engine.caller.check(request.headers.get)
    monkeypatch.setenv("GAE_ENV", "standard")
    engine.caller.check(request.headers.get)
