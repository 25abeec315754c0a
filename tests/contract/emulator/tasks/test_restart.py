"""State kept over a restart, and a kill -9 while tasks are being dispatched."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.tasks_v2 import Queue

import userlock_emulator
from tests.contract.emulator.process import ROOT, EmulatorProcess, command
from tests.contract.emulator.tasks.conftest import QUEUE, grpc_client
from tests.contract.emulator.tasks.target import Received, Target
from userlock_emulator import tasks
from userlock_emulator.port.status import StorageError


class Process(EmulatorProcess):
    def __init__(self, *arguments: str) -> None:
        super().__init__("--tasks", "0", *arguments)
        assert self.process.stdout is not None
        name = "export CLOUD_TASKS_EMULATOR_HOST="
        line = next(each for each in self.process.stdout if each.startswith(name))
        self.client: Any = grpc_client(line.strip().removeprefix(name))

    def __exit__(self, *_: object) -> None:
        self.client.transport.close()
        super().__exit__()


def create(client: Any, target: Target, task_id: str) -> None:
    task = {"name": f"{QUEUE}/tasks/{task_id}", "http_request": {"url": target.url}}
    client.create_task(parent=QUEUE, task=task)


def test_what_was_being_dispatched_is_dispatched_again(tmp_path: Path) -> None:
    """A kill -9 while targets work: at least once, and no name twice."""
    released = threading.Event()
    count = 20

    def answer(_: Received) -> int:
        released.wait(30)
        return 200

    with Target(answer) as target:
        with Process("--data-dir", str(tmp_path), "--tasks-queue", QUEUE) as process:
            for number in range(count):
                create(process.client, target, f"t{number}")
            target.wait_for(count)
            process.stop(signal.SIGKILL)
        released.set()
        with Process("--data-dir", str(tmp_path)) as process:
            target.wait_for(2 * count)
            queue = process.client.get_queue(name=QUEUE)
            assert queue.state == Queue.State.RUNNING
            with pytest.raises(exceptions.AlreadyExists):
                create(process.client, target, "t0")
        names = [each.task for each in target.received]
        assert sorted(names[:count]) == sorted(names[count:])
        again = {each.headers["X-CloudTasks-TaskRetryCount"] for each in target.received[count:]}
        assert again == {"1"}


def test_no_acknowledged_task_is_lost(tmp_path: Path) -> None:
    """A kill -9 while tasks are created and delivered."""
    acknowledged: list[str] = []
    with Target() as target:
        with Process("--data-dir", str(tmp_path), "--tasks-queue", QUEUE) as process:

            def load() -> None:
                with contextlib.suppress(exceptions.GoogleAPICallError):
                    for number in itertools.count():
                        create(process.client, target, f"t{number}")
                        acknowledged.append(f"t{number}")

            thread = threading.Thread(target=load)
            thread.start()
            target.wait_for(30)
            process.stop(signal.SIGKILL)
            thread.join(30)
            assert not thread.is_alive()
        with tasks.start(data_dir=tmp_path) as server:
            server.wait_empty()
        delivered = {each.task for each in target.received}
        assert set(acknowledged) <= delivered
        # One may have been stored without its acknowledgement.
        assert len(delivered) <= len(acknowledged) + 1


def test_a_folder_of_both_servers(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with userlock_emulator.start(data_dir=folder), tasks.start(data_dir=folder):
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        with pytest.raises(StorageError, match="another emulator is using it"):
            tasks.start(data_dir=folder)


class TestCommand:
    def test_without_the_package(self, tmp_path: Path) -> None:
        """Everything else works; `--tasks` names the extra to install."""
        (tmp_path / "sitecustomize.py").write_text(
            "import sys\n"
            "class Missing:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'google.cloud.tasks_v2':\n"
            "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
            "sys.meta_path.insert(0, Missing())\n"
        )
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                arguments, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=30
            )

        completed = run(*command("start", "--port", "0", "--tasks", "0"))
        assert completed.returncode == 2
        (line,) = completed.stderr.splitlines()
        assert "pip install 'userlock-emulator[tasks]'" in line
        program = (
            "import userlock_emulator, userlock_emulator.tasks, userlock_emulator.pytest_plugin\n"
            "with userlock_emulator.start() as server: print(server.host)\n"
            "try: userlock_emulator.tasks.start()\n"
            "except ImportError as error: print(error)\n"
        )
        completed = run(sys.executable, "-c", program)
        assert completed.returncode == 0, completed.stderr
        assert "userlock-emulator[tasks]" in completed.stdout
