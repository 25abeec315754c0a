"""Test the stack runner: ports, children, and their end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sample_app import run
from sample_app.stack import Child, ChildDied, PortTaken, ports
from tests.waiting import is_alive, wait_until

PYTHON = [sys.executable, "-I", "-S", "-c"]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def child(tmp_path: Path, code: str, answers: Callable[[], bool] = lambda: True) -> Child:
    return Child("the child", [*PYTHON, code], answers=answers, log_file=tmp_path / "child.log")


def test_a_taken_port_is_named_with_its_setting(taken_port: int) -> None:
    with pytest.raises(PortTaken) as caught:
        ports.claim(taken_port, user="the site", variable="PORT")
    assert f"Port {taken_port} is taken" in str(caught.value)
    assert "the site needs it" in str(caught.value)
    assert f"PORT={taken_port + 1}" in str(caught.value)


def test_run_refuses_a_taken_port_with_exit_code_2(
    taken_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"PORT": str(taken_port), "LOG_DIR": str(tmp_path)}
    assert run.run(environ) == 2
    assert f"Port {taken_port} is taken" in capsys.readouterr().err
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


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_child_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent_code = (
        "import pathlib, signal, sys\n"
        "from sample_app.stack import Child\n"
        "child = Child('c', [sys.executable, '-c', 'import signal; signal.pause()'],\n"
        f"    answers=lambda: True, log_file=pathlib.Path({str(tmp_path / 'c.log')!r}))\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    root = Path(run.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", parent_code], stdout=subprocess.PIPE, cwd=root
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))
