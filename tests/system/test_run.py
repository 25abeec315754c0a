"""The command `python -m sample_app run`, as `make run` starts it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_app.stack import ports, services
from tests.system.load import FINISH, call
from tests.waiting import is_alive, wait_until

pytestmark = pytest.mark.slow


class Run:
    """The command, with its output up to the summary."""

    def __init__(self, log_dir: Path) -> None:
        self.port = ports.any_free()
        environ = {**os.environ, "PORT": str(self.port), "LOG_DIR": str(log_dir)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sample_app", "run"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
            cwd=services.ROOT,
        )
        self.said = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if line.startswith("Ctrl-C stops everything"):
                return
        pytest.fail(f"ended with {self.process.wait()}:\n{self.said}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def descendants(self) -> list[int]:
        found, todo = [], [self.process.pid]
        while todo:
            pid = todo.pop()
            try:
                listing = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            except (FileNotFoundError, ProcessLookupError):  # ended since its parent was read
                continue
            children = [int(each) for each in listing.split()]
            found += children
            todo += children
        return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    if run.process.poll() is None:
        run.process.terminate()
    run.process.communicate()


def test_it_starts_says_where_everything_is_and_stops_on_ctrl_c(running: Run) -> None:
    ready = re.search(r"Ready in ([\d.]+) s", running.said)
    assert ready is not None
    print(f"\nmake run was ready in {ready[1]} s")
    assert float(ready[1]) < 20  # a busy machine; a second or two otherwise
    assert running.url in running.said
    assert "export DATASTORE_EMULATOR_HOST=127.0.0.1:" in running.said
    assert "2 worker processes" in running.said

    # A live site at once, and the suggested commands work.
    assert "Ada Lindqvist" in call(running.url, "GET", "/").body
    for method, path in re.findall(
        r"curl (?:-X (\w+) )?" + re.escape(running.url) + r"(\S+)", running.said
    ):
        assert call(running.url, method or "GET", path).status in (200, 202), path

    pids = running.descendants()
    assert len(pids) >= 5, "emulator, memcached, gunicorn and two workers"
    running.process.send_signal(signal.SIGINT)
    rest, _ = running.process.communicate(timeout=30)
    assert running.process.returncode == 0, rest
    assert "Goodbye" in rest
    assert not [pid for pid in pids if is_alive(pid)]


def test_it_leaves_nothing_behind_when_it_is_killed(running: Run) -> None:
    pids = running.descendants()
    running.process.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), seconds=15)


def test_memcached_and_the_relay_come_back_and_the_site_stays(running: Run) -> None:
    match = re.search(r"kill (\d+)", running.said)
    assert match is not None
    os.kill(int(match[1]), signal.SIGTERM)
    assert running.process.stdout is not None
    said = running.process.stdout.readline()
    while "continues without it" not in said:
        said += running.process.stdout.readline()
    answer = call(running.url, "POST", FINISH.format("ada"))
    assert (answer.status, answer.lock) == (200, "degraded")
    while "memcached is back" not in said:
        said += running.process.stdout.readline()

    def relays() -> list[int]:
        found = []
        for pid in running.descendants():
            with contextlib.suppress(OSError):
                if b"outbox\0relay" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    wait_until(lambda: len(relays()) == 1, seconds=15)
    (first,) = relays()
    os.kill(first, signal.SIGKILL)
    said = running.process.stdout.readline()
    while "Restarting it" not in said:
        said += running.process.stdout.readline()
    assert "the relay ended (SIGKILL)" in said
    wait_until(lambda: len(relays()) == 1 and relays() != [first], seconds=15)


def test_a_dead_emulator_ends_it_with_exit_code_1(running: Run, tmp_path: Path) -> None:
    emulator = next(
        pid
        for pid in running.descendants()
        if b"emulator\0start" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    pids = running.descendants()
    os.kill(emulator, signal.SIGKILL)
    rest, _ = running.process.communicate(timeout=30)
    assert running.process.returncode == 1
    assert "the emulator ended (SIGKILL)" in rest
    assert not [pid for pid in pids if is_alive(pid)]
