"""The command `python -m userlock_emulator`: start, stop, messages, exit codes, restarts."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.process import ROOT, EmulatorProcess, run_to_end
from tests.unit.emulator.builders import PROJECT, entity, key
from userlock_emulator.datastore.protos import CommitRequest, LookupRequest, Mutation

KEY = key("K", 1)


def lookup(host: str) -> int:
    """Look up one key; return the number of found entities."""
    stub = Stub(host)
    found = stub.call("Lookup", LookupRequest(project_id=PROJECT, keys=[KEY])).found
    stub.close()
    return len(found)


def put(host: str) -> None:
    stub = Stub(host)
    request = CommitRequest(
        project_id=PROJECT,
        mode=CommitRequest.NON_TRANSACTIONAL,
        mutations=[Mutation(upsert=entity(KEY, n=1))],
    )
    stub.call("Commit", request)
    stub.close()


def test_the_first_line_is_for_the_shell_and_true() -> None:
    started = time.monotonic()
    with EmulatorProcess() as process:
        assert re.fullmatch(r"export DATASTORE_EMULATOR_HOST=127\.0\.0\.1:\d+", process.first_line)
        assert lookup(process.host) == 0
        # The promise is a second on an idle machine; this one may be busy.
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_it_cleanly(number: int, tmp_path: Path) -> None:
    with EmulatorProcess("--data-dir", str(tmp_path)) as process:
        put(process.host)
        assert process.stop(number) == 0
    with EmulatorProcess("start", "--data-dir", str(tmp_path)) as process:
        assert lookup(process.host) == 1


def assert_refused(completed: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert completed.returncode == 2
    assert completed.stdout == ""
    (line,) = completed.stderr.splitlines()
    for text in texts:
        assert text in line


def test_a_taken_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_refused(run_to_end("--port", str(port)), str(port), "taken")


def test_a_second_emulator_does_not_share_the_port() -> None:
    with EmulatorProcess() as process:
        port = process.host.rpartition(":")[2]
        assert_refused(run_to_end("--port", port), "taken")


def test_an_address_of_another_machine_is_one_clear_line() -> None:
    assert_refused(run_to_end("--host", "192.0.2.1", "--port", "0"), "192.0.2.1")


def test_unusable_data_is_one_clear_line(tmp_path: Path) -> None:
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    assert_refused(run_to_end("--port", "0", "--data-dir", str(not_a_folder)), str(not_a_folder))

    newer = tmp_path / "newer"
    with EmulatorProcess("--data-dir", str(newer)) as process:
        assert_refused(run_to_end("--port", "0", "--data-dir", str(newer)), "another emulator")
        process.stop(signal.SIGTERM)
    (file,) = newer.glob("*.sqlite3")
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 1000")
    connection.close()
    assert_refused(run_to_end("--port", "0", "--data-dir", str(newer)), "newer version")


@pytest.mark.parametrize(
    "arguments", [["--port", "no"], ["--port", "70000"], ["--concurrency-mode", "x"], ["stop"]]
)
def test_bad_arguments(arguments: list[str]) -> None:
    completed = run_to_end(*arguments)
    assert completed.returncode == 2
    assert arguments[-1] in completed.stderr


def test_it_runs_inside_a_process_that_forgets_to_stop_it() -> None:
    program = "import userlock_emulator\nserver = userlock_emulator.start()\nprint(server.host)\n"
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")


def test_the_memcached_half_does_not_pay_for_this_one() -> None:
    program = "import sys, userlock_emulator; sys.exit('grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=20, check=True)
