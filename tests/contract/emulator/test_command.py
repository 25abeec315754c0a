"""The command `python -m userlock_emulator`: what it prints, refuses and does."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

import userlock_emulator
from sample_app.stack import ports
from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.process import ROOT, EmulatorProcess, refused, run_to_end
from tests.unit.emulator.builders import entity, key
from tests.unit.emulator.subject import query
from userlock_emulator import memcache, tasks
from userlock_emulator.datastore.protos import Mutation
from userlock_emulator.datastore.server import CONCURRENCY_MODES
from userlock_emulator.google_options import GOOGLES_DATA
from userlock_emulator.remote import Remote

KEY = key("K", 1)
RUNNING = "Dev App Server is now running."


def put(host: str) -> None:
    with Stub(host) as stub:
        stub.put(entity(KEY, n=1))


def is_there(host: str) -> bool:
    with Stub(host) as stub:
        return stub.get(KEY) is not None


def host_in(said: str) -> str:
    return said.splitlines()[0].removeprefix("export DATASTORE_EMULATOR_HOST=").strip("'")


def start(*arguments: str, act: Any = is_there) -> tuple[str, Any]:
    """Start an emulator in this process; return its output, and the result of `act(host)`."""
    results: list[Any] = []
    completed = run_to_end(
        *arguments, "--port", "0", running=lambda said: results.append(act(host_in(said)))
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout, results[0]


class TestProcess:
    @pytest.mark.parametrize(
        ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGKILL, -9)]
    )
    def test_signals_stop_it_cleanly(self, number: int, code: int, tmp_path: Path) -> None:
        """The first line is for the shell; runners of Google's emulators wait for the last."""
        with EmulatorProcess("start", "--data-dir", str(tmp_path), "--edit") as process:
            line = r"export DATASTORE_EMULATOR_HOST=127\.0\.0\.1:\d+"
            assert re.fullmatch(line, process.first_line)
            put(process.host)
            assert process.stop(number) == code
            assert process.process.stdout is not None
            *lines, viewer, last = process.process.stdout.read().splitlines()
            env = run_to_end("env", "--host", process.host, "--shell", "bash")
            assert env.stdout.splitlines() == [process.first_line, *lines]
            assert viewer == f"# viewer: http://{process.host}/viewer/"
            assert last == f"# {RUNNING}"
        assert start("--data-dir", str(tmp_path))[1], "it is still there"

    def test_shutdown_ends_the_process_after_the_reply(self) -> None:
        with EmulatorProcess("--memcached", "0") as process:
            shutdown = ["curl", "--silent", "--fail", "-X", "POST", f"{process.host}/shutdown"]
            subprocess.run(shutdown, check=True)
            assert process.process.wait(20) == 0

    def test_it_runs_inside_a_process_that_forgets_to_stop_it(self) -> None:
        """Importing it imports no gRPC: other tests, and the memcached half, do not pay for it."""
        program = (
            "import sys, userlock_emulator.pytest_plugin; assert 'grpc' not in sys.modules\n"
            "server = userlock_emulator.start()\n"
        )
        completed = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (completed.returncode, completed.stderr) == (0, "")


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["--port"], "--help"),
            (["--port", "70000"], "70000"),
            (["--concurrency-mode", "x"], "'x'"),
            (["export"], "--help"),
            (["--port", "0", "--host", "192.0.2.1"], "192.0.2.1"),
            (["strat"], "did you mean start?"),
            (["nothing-like-it"], "no command is called"),
            (["--prot", "1"], "did you mean --port?"),
            (["start", "--data-dri=x"], "did you mean --data-dir?"),
            (["env", "--unste"], "did you mean --unset?"),
            (["--indexes", "enforced"], "index file"),
            (["--index-file", "/missing"], "/missing"),
            # Google's options, and those that it does not have.
            (["--consistency=x"], "every query sees every commit"),
            (["--database-mode=firestore-native"], "only datastore-mode"),
            (["--auto_id_policy=SEQUENTIAL"], "SCATTERED"),
            (["--allow_reserved_kinds"], "refused, as by the service"),
            (["--import-data", "x"], "/v1/projects/PROJECT:import"),
            (["--store_index_configuration_on_disk=true"], "--indexes auto"),
            (["--store-on-disk"], "--store-on-disk needs --data-dir"),
            (["--testing", "--store-on-disk"], "contradict"),
            (["start", "one", "--data-dir", "two"], "two data folders"),
            (["--require-indexes", "--indexes", "off"], "--indexes off"),
            (["--enable-entity-groups", "--concurrency-mode", "optimistic"], "optimistic"),
            (["--host-port", "::1:8081"], "HOST:PORT"),
            (["--host-port", "localhost:99999"], "HOST:PORT"),
            # Cloud Tasks.
            (["--tasks", "x"], "not a port number"),
            (["--port", "0", "--tasks", "0", "--tasks-queue", "q"], "Queue name must be formatted"),
            (["--tasks", "0", "--app-engine", "x"], "not [SERVICE=]HOST:PORT"),
            (["--app-engine", "127.0.0.1:1"], "need --tasks PORT"),
        ],
    )
    def test_arguments(self, arguments: list[str], reason: str) -> None:
        refused(run_to_end(*arguments), reason)

    @pytest.mark.parametrize("option", ["--port", "--memcached", "--tasks"])
    def test_a_taken_port(self, option: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            first = [] if option == "--port" else ["--port", "0"]
            said = f"{port}: the port is taken; choose another by {option} PORT"
            refused(run_to_end(*first, option, port), said)

    def test_an_output_that_cannot_be_written(self) -> None:
        ended = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m userlock_emulator env --host x:1 >/dev/full"],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        refused(ended, "cannot write the output")

    def test_a_host_that_is_none(self) -> None:
        refused(run_to_end("--port", "0", "--host", "nowhere.invalid"), "or --host HOST")

    def test_data_that_cannot_be_used(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        data, file = tmp_path / "data", tmp_path / "file"
        file.touch()
        for folder in (file, file / "below"):
            said = f"{file} is a file, not a folder"
            refused(run_to_end("--port", "0", "--data-dir", str(folder)), said)
        again = ["--port", "0", "--data-dir", str(data)]
        start("--data-dir", str(data), act=lambda _: refused(run_to_end(*again), "another"))
        # Google's data is not passed over in silence.
        (tmp_path / GOOGLES_DATA).parent.mkdir(parents=True)
        (tmp_path / GOOGLES_DATA).touch()
        start("--data-dir", str(tmp_path))
        assert "local_db.bin is data of Google's emulator" in caplog.text


class TestStart:
    def test_concurrency_modes(self) -> None:
        """In the legacy mode 26 entity groups are too many for one transaction."""

        def commit(host: str) -> bool:
            mutations = [Mutation(upsert=entity(key("K", i))) for i in range(1, 27)]
            with Stub(host) as stub, contextlib.suppress(grpc.RpcError):
                stub.commit(*mutations, transactional=True)
                return True
            return False

        for mode in CONCURRENCY_MODES:
            _, done = start("--concurrency-mode", mode, act=commit)
            assert done == (mode != "optimistic-with-entity-groups")
        assert not start("--enable_entity_groups=true", "--testing", act=commit)[1]

    def test_indexes_added_in_one_run_are_enforced_in_the_next(self, tmp_path: Path) -> None:
        path = str(tmp_path / "index.yaml")

        def ask(host: str, *orders: str) -> None:
            with Stub(host) as stub:
                stub.run(query(orders=orders))

        start("--indexes", "auto", "--index-file", path, act=lambda host: ask(host, "a", "-b"))
        start("--index-file", path, act=lambda host: ask(host, "a", "-b"))
        with pytest.raises(grpc.RpcError, match="recommended index is:\n- kind: K") as caught:
            start("--index-file", path, act=lambda host: ask(host, "b", "a"))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    def test_memcached_and_tasks_too(self) -> None:
        said, _ = start("--memcached", "0", "--tasks", "0", act=lambda _: None)
        assert re.search(r"\nexport MEMCACHED_HOSTS=127.0.0.1:\d+\n", said)
        assert re.search(r"\nexport CLOUD_TASKS_EMULATOR_HOST=127.0.0.1:\d+\n", said)

    def test_as_gcloud_starts_its_own(self, tmp_path: Path) -> None:
        """The lines of testcontainers, of many scripts, and of gcloud itself."""
        folder = ["--data-dir", str(tmp_path)]
        start(
            *("start", "--project", "mine", "--no-store-on-disk", "--consistency=1.0", *folder),
            *("--quiet", "--use-firestore-in-datastore-mode"),
            act=put,
        )
        assert [each.name for each in tmp_path.iterdir()] == ["env.yaml"]
        start(
            *("start", "--host=127.0.0.1", "--store_on_disk=True", "--allow_remote_shutdown"),
            *("--firestore_in_datastore_mode", str(tmp_path)),
            act=put,
        )
        assert start(*folder)[1]

    @pytest.mark.parametrize(
        ("text", "host"),
        [("[::1]:{}", "[::1]:{}"), (":{}", "127.0.0.1:{}"), ("{}", "127.0.0.1:{}")],
    )
    def test_host_and_port_in_one(self, text: str, host: str) -> None:
        port = ports.any_free()
        hosts: list[str] = []

        def reset(said: str) -> None:
            hosts.append(host_in(said))
            Remote(hosts[0]).reset()

        run_to_end("--host-port", text.format(port), running=reset)
        assert hosts == [host.format(port)]


class TestReset:
    def test_data_on_disk_goes_too(self, tmp_path: Path) -> None:
        def reset(host: str) -> None:
            put(host)
            completed = run_to_end("reset", "--host", f"http://{host}/")  # as some clients want it
            assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")

        start("--data-dir", str(tmp_path), act=reset)
        assert not start("--data-dir", str(tmp_path))[1]

    def test_where_no_emulator_is(self, tmp_path: Path) -> None:
        refused(run_to_end("reset", "--host", "127.0.0.1:1"), "127.0.0.1:1", "no emulator answers")
        refused(run_to_end("reset", "--host", "127.0.0.1:x"), "not HOST:PORT: '127.0.0.1:x'")
        export = run_to_end("export", str(tmp_path / "x"), "--host", "127.0.0.1:1")
        refused(export, "no emulator answers")
        assert not list(tmp_path.iterdir()), "an export is whole or not there"


class TestEnv:
    def test_shells(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CLOUD_TASKS_EMULATOR_HOST", raising=False)
        arguments = ["env", "--host", "h:1", "--project", "it's"]
        printed = run_to_end(*arguments, "--shell", "bash").stdout
        assert "CLOUD_TASKS" not in printed
        script = f"{printed}\necho $DATASTORE_EMULATOR_HOST $GOOGLE_CLOUD_PROJECT"
        assert subprocess.check_output(["bash", "-c", script], text=True) == "h:1 it's\n"
        fish = run_to_end(*arguments, "--shell", "fish").stdout
        assert fish.splitlines()[0] == "set -gx DATASTORE_EMULATOR_HOST h:1"
        said = run_to_end(*arguments, "--tasks", "h:2", "--shell", "bash").stdout
        assert "export CLOUD_TASKS_EMULATOR_HOST=h:2\n" in said
        monkeypatch.setenv("CLOUD_TASKS_EMULATOR_HOST", "h:2")
        assert run_to_end(*arguments, "--shell", "bash").stdout == said

    def test_the_variables_of_env_init(self, tmp_path: Path) -> None:
        """Those that `gcloud beta emulators datastore env-init` (Cloud SDK 528) prints."""

        def look(host: str) -> dict[str, str]:
            printed = run_to_end("env", "--data-dir", str(tmp_path), "--shell", "bash").stdout
            seen = subprocess.check_output(["bash", "-c", f"{printed}\nenv"], text=True)
            expected = {
                "DATASTORE_DATASET": "mine",
                "DATASTORE_EMULATOR_HOST": host,
                "DATASTORE_EMULATOR_HOST_PATH": f"{host}/datastore",
                "DATASTORE_HOST": f"http://{host}",
                "DATASTORE_PROJECT_ID": "mine",
            }
            assert {f"{name}={text}" for name, text in expected.items()} <= set(seen.splitlines())
            file = yaml.safe_load((tmp_path / "env.yaml").read_text())
            assert expected.items() <= file.items()
            return expected

        _, expected = start("--data-dir", str(tmp_path), "--project", "mine", act=look)
        assert (tmp_path / "env.yaml").stat().st_mode & 0o077 == 0
        unset = run_to_end("env", "--unset", "--shell", "bash").stdout.splitlines()
        assert {f"unset {name}" for name in expected} <= set(unset)

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("gcloud") is None, reason="needs the Cloud SDK")
    def test_gcloud_reads_ours(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
        gcloud = f"gcloud beta emulators datastore env-init --data-dir {tmp_path}".split()
        start(
            *("--data-dir", str(tmp_path), "--project", "mine"),
            act=lambda host: (
                f"export DATASTORE_EMULATOR_HOST={host}\n"
                in subprocess.check_output(gcloud, text=True)
            ),
        )

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (None, "start an emulator"),
            ("- 1", "else than variables"),
            ("a b: c", "else than variables"),
            ("a; rm -r x: c", "else than variables"),
            ("a: {", "cannot read"),
        ],
    )
    def test_files(self, tmp_path: Path, text: str | None, reason: str) -> None:
        file = tmp_path / "env.yaml"
        file.write_text("---\nDATASTORE_HOST: http://localhost:9483\n")  # Google's
        read = run_to_end("env", "--data-dir", str(tmp_path), "--shell", "bash")
        assert read.stdout == "export DATASTORE_HOST=http://localhost:9483\n"
        file.unlink()
        if text is not None:
            file.write_text(text)
        refused(run_to_end("env", "--data-dir", str(tmp_path)), reason)


def test_stopping_and_ports_in_a_program() -> None:
    first = userlock_emulator.start()
    port = int(first.host.rpartition(":")[2])
    with pytest.raises(userlock_emulator.PortInUseError, match=f"{port}.*taken"):
        userlock_emulator.start(port)
    first.stop()
    first.stop()
    first.wait()
    with userlock_emulator.start(port) as second:
        assert not is_there(second.host)
    with pytest.raises(ValueError, match="available: optimistic, pessimistic, "):
        userlock_emulator.start(concurrency_mode="hopeful")
    with pytest.raises(userlock_emulator.StorageError):
        userlock_emulator.start(indexes="enforced", index_file=Path("/missing.yaml"))
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (userlock_emulator.start, {"edit": "no"}),
        (userlock_emulator.start, {"limits": None}),
        (userlock_emulator.start, {"now": 5}),
        (tasks.start, {"anywhere": "no"}),
        (memcache.start, {"limits": "x"}),
    ]
    for begin, option in wrong:
        with pytest.raises(TypeError, match=f"{next(iter(option))} must be of type"):
            begin(**option)
