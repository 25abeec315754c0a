"""Test the stack runner: ports, children, and their end."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sample_app import run
from sample_app.stack import Child, ChildDied
from tests.waiting import is_alive, wait_until

PYTHON = [sys.executable, "-I", "-S", "-c"]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def child(tmp_path: Path, code: str, answers: Callable[[], bool] = lambda: True) -> Child:
    return Child("the child", [*PYTHON, code], answers=answers, log_file=tmp_path / "child.log")


def test_run_refuses_a_taken_port_with_exit_code_2(
    taken_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"PORT": str(taken_port), "LOG_DIR": str(tmp_path)}
    assert run.run(environ) == 2
    said = capsys.readouterr().err
    assert f"Port {taken_port} is taken" in said
    assert f"PORT={taken_port + 1}" in said
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_dies_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    dying = child(tmp_path, "print('no room'); raise SystemExit(3)", answers=lambda: False)
    dying.start()
    with pytest.raises(ChildDied, match=r"ended early \(exit code 3\)(.|\n)*no room"):
        dying.wait_until_it_answers(10)


def test_a_child_that_ignores_sigterm_is_killed_with_its_own_children(tmp_path: Path) -> None:
    code = (
        "import os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "below = subprocess.Popen([sys.executable, '-I', '-S', '-c', "
        "'import signal; signal.pause()'])\n"
        "print(below.pid, flush=True)\n"
        "signal.pause()\n"
    )
    log = tmp_path / "child.log"
    stubborn = child(tmp_path, code, answers=lambda: log.read_text().endswith("\n"))
    stubborn.start()
    stubborn.wait_until_it_answers(10)
    below = int(log.read_text())
    assert stubborn.child_pids() == [below]
    stubborn.stop(grace_seconds=0.05)
    assert stubborn.exit_code == -signal.SIGKILL
    wait_until(lambda: not is_alive(below))
