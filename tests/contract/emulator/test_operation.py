"""The command `python -m userlock_emulator reset|export|import|env`, and the options of `start`."""

from __future__ import annotations

import json
import logging
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.process import ROOT, EmulatorProcess, command, run_to_end
from tests.unit.emulator.builders import PROJECT, GeoPoint, Timestamp, entity, key, value
from userlock_emulator.datastore.protos import CommitRequest, LookupRequest, Message, Mutation

ALL_TYPES = {
    "none": None,
    "yes": True,
    "large": 2**63 - 1,
    "small": -(2**63),
    "real": 0.1,
    "infinite": float("inf"),
    "negative_zero": -0.0,
    "text": 'ü\n"\u2028\x00',
    "blob": bytes(range(256)),
    "at": Timestamp(1_700_000_000_123_456),
    "where": GeoPoint((1.5, -2.5)),
    "other": key("Other", "x", namespace="space"),
    "many": [1, "a", None],
    "empty": [],
    "inner": {"a": 1, "b": {"c": [True]}},
    "hidden": value("h", indexed=False),
    "meant": value("m"),
}
ALL_TYPES["meant"].meaning = 15


def elsewhere(of: Message, database: str = "", namespace: str = "") -> Message:
    of.partition_id.database_id = database
    of.partition_id.namespace_id = namespace
    return of


def keys() -> list[Message]:
    """Return keys that differ in each part, and some whose kinds make bad file names."""
    return [
        key("K", 1),
        key("K", 1, "Child", "a"),
        key("K", 2),
        key("K", 1, project="example.com:other"),
        elsewhere(key("K", 1), database="db"),
        elsewhere(key("K", 1), namespace=".."),
        elsewhere(key("K", 1), database="db", namespace="n"),
        *(
            key(kind, 1)
            for kind in ("..", ".", "a/b", "../../up", "k" * 1500, "K" * 1500, "ü" * 99)
        ),
    ]


def put(stub: Stub, of: Message, **properties: Any) -> None:
    request = CommitRequest(
        project_id=of.partition_id.project_id,
        database_id=of.partition_id.database_id,
        mode=CommitRequest.NON_TRANSACTIONAL,
        mutations=[Mutation(upsert=entity(of, **properties))],
    )
    stub.call("Commit", request)


def get(stub: Stub, of: Message) -> Message | None:
    request = LookupRequest(
        project_id=of.partition_id.project_id,
        database_id=of.partition_id.database_id,
        keys=[of],
    )
    found = stub.call("Lookup", request).found
    return found[0].entity if found else None


def run(server: userlock_emulator.Emulator, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_to_end(*arguments, "--host", server.host)


def refused(completed: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert completed.returncode == 2
    (line,) = completed.stderr.splitlines()
    for text in texts:
        assert text in line


class TestExportAndImport:
    def test_everything_comes_back(
        self, server: userlock_emulator.Emulator, stub: Stub, tmp_path: Path
    ) -> None:
        for of in keys():
            put(stub, of, **ALL_TYPES)
        before = [get(stub, of) for of in keys()]
        folder = tmp_path / "new" / "folder"
        completed = run(server, "export", str(folder))
        assert (completed.returncode, completed.stderr) == (0, "")
        assert json.loads((folder / "export.json").read_text()) == {
            "format": 1,
            "entities": len(before),
        }
        files = list(folder.rglob("*.jsonl"))
        assert folder / PROJECT / "(default)" / "(default)" / "K.jsonl" in files
        assert len(files) == len(before) - 1  # two are of one kind in one place
        assert sum(len(path.read_bytes().splitlines(True)) for path in files) >= len(before)

        server.reset()
        put(stub, key("K", 2), was="there")
        completed = run(server, "import", str(folder))
        assert completed.stdout == f"{len(before)} entities read from {folder}\n"
        assert [get(stub, of) for of in keys()] == before

    def test_more_than_is_read_at_once_and_as_of_one_time(
        self, server: userlock_emulator.Emulator, stub: Stub, tmp_path: Path
    ) -> None:
        mutations = [Mutation(upsert=entity(key("K", i), n=i)) for i in range(1, 1002)]
        stub.call(
            "Commit",
            CommitRequest(
                project_id=PROJECT, mode=CommitRequest.NON_TRANSACTIONAL, mutations=mutations
            ),
        )
        lines = server._control._transfer.lines()
        first = next(lines)
        put(stub, key("K", 1001), n=-1)
        put(stub, key("K", 1002), n=-1)
        written = (first + b"".join(lines)).splitlines()
        assert len(written) == 1001
        assert not [line for line in written if b'"-1"' in line]
        assert run(server, "export", str(tmp_path / "x")).stdout.startswith("1002 entities")

    def test_lines_written_by_hand(
        self, server: userlock_emulator.Emulator, stub: Stub, tmp_path: Path
    ) -> None:
        where = {"projectId": PROJECT}
        line = {
            "key": {"partitionId": where, "path": [{"kind": "Task", "name": "a"}]},
            "properties": {"n": {"integerValue": "1"}},
        }
        # No line end after the last line, and an empty line.
        (tmp_path / "tasks.jsonl").write_text("\n" + json.dumps(line))
        (tmp_path / "users.jsonl").write_text(json.dumps(line).replace("Task", "User"))
        assert run(server, "import", str(tmp_path)).returncode == 0
        assert get(stub, key("Task", "a")) == entity(key("Task", "a"), n=1)
        assert get(stub, key("User", "a")) is not None

    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("{", "line 1 is not an entity"),
            ('{"kye": {}}', "kye"),
            ('{"key": {"path": [{"kind": "K"}]}}', "no partitionId.projectId"),
            ('{"key": {"partitionId": {"projectId": "p"}}}', "must not be empty"),
        ],
    )
    def test_lines_that_are_no_entities(
        self, server: userlock_emulator.Emulator, tmp_path: Path, line: str, text: str
    ) -> None:
        (tmp_path / "k.jsonl").write_text(line)
        refused(run(server, "import", str(tmp_path)), text)

    def test_folders_that_cannot_be_used(
        self, server: userlock_emulator.Emulator, tmp_path: Path
    ) -> None:
        refused(run(server, "import", str(tmp_path / "none")), str(tmp_path / "none"))
        (tmp_path / "export.json").write_text('{"format": 2}')
        refused(run(server, "import", str(tmp_path)), "newer version", "format 2")
        refused(run(server, "export", str(tmp_path)), str(tmp_path), "not empty")
        refused(run(server, "export", "/proc/none"), "/proc/none")

    def test_an_export_is_whole_or_not_there(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        refused(run_to_end("export", str(folder), "--host", "127.0.0.1:1"), "no emulator answers")
        assert not list(tmp_path.iterdir())


class TestReset:
    def test_reset(self, server: userlock_emulator.Emulator, stub: Stub) -> None:
        put(stub, key("K", 1))
        completed = run(server, "reset")
        assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
        assert get(stub, key("K", 1)) is None

    def test_data_on_disk_goes_too(self, tmp_path: Path) -> None:
        with EmulatorProcess("--data-dir", str(tmp_path)) as process:
            stub = Stub(process.host)
            put(stub, key("K", 1))
            assert run_to_end("reset", "--host", process.host).returncode == 0
            put(stub, key("K", 2))
            stub.close()
            process.stop(signal.SIGKILL)
        with EmulatorProcess("--data-dir", str(tmp_path)) as process:
            stub = Stub(process.host)
            assert get(stub, key("K", 1)) is None
            assert get(stub, key("K", 2)) is not None
            stub.close()

    def test_where_no_emulator_is(self) -> None:
        refused(run_to_end("reset", "--host", "127.0.0.1:1"), "127.0.0.1:1", "no emulator answers")
        refused(run_to_end("reset", "--host", "127.0.0.1:x"), "not HOST:PORT: '127.0.0.1:x'")

    def test_the_address_as_some_clients_want_it(self, server: userlock_emulator.Emulator) -> None:
        assert run_to_end("reset", "--host", f"http://{server.host}/").returncode == 0


class TestEnv:
    def test_bash(self) -> None:
        printed = subprocess.run(
            command("env", "--host", "h:1", "--project", "it's", "--shell", "bash"),
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        script = f"{printed.stdout}\necho $DATASTORE_EMULATOR_HOST $GOOGLE_CLOUD_PROJECT"
        completed = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
        assert completed.stdout == b"h:1 it's\n"

    def test_fish(self) -> None:
        completed = run_to_end("env", "--shell", "fish", "--host", "127.0.0.1:8081")
        assert completed.stdout.splitlines()[0] == (
            "set -gx DATASTORE_EMULATOR_HOST 127.0.0.1:8081"
        )
        fish = shutil.which("fish")
        if fish is not None:
            subprocess.run([fish, "-c", completed.stdout], check=True)

    def test_as_the_emulator_prints_it(self) -> None:
        with EmulatorProcess("--project", "mine") as process:
            printed = run_to_end(
                "env", "--host", process.host, "--project", "mine", "--shell", "bash"
            )
            process.stop(signal.SIGTERM)
            assert process.process.stdout is not None
            lines = [process.first_line, *process.process.stdout.read().splitlines()]
            assert printed.stdout.splitlines() == lines[:-2]
            assert lines[-2] == f"# viewer: http://{process.host}/viewer/"
            assert lines[-1].startswith("# ")  # the shell skips it


class TestStart:
    def test_memcached_too(self) -> None:
        with EmulatorProcess("--memcached", "0") as process:
            assert process.process.stdout is not None
            lines = [process.process.stdout.readline() for _ in range(6)]
            found = re.fullmatch(r"export MEMCACHED_HOSTS=(.*):(\d+)\n", lines[-1])
            assert found is not None
            with socket.create_connection((found[1], int(found[2])), timeout=10) as client:
                client.sendall(b"version\r\n")
                assert client.recv(100).startswith(b"VERSION ")
            assert process.stop(signal.SIGTERM) == 0

    def test_a_taken_port_for_memcached(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            refused(run_to_end("--port", "0", "--memcached", port), port, "in use")

    @pytest.mark.parametrize("arguments", [["--port"], ["--portt", "1"], ["export"], ["find"]])
    def test_wrong_arguments_are_one_line(self, arguments: list[str]) -> None:
        refused(run_to_end(*arguments), "--help")

    def test_each_rpc_is_in_the_log(
        self, server: userlock_emulator.Emulator, stub: Stub, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG, "userlock_emulator"):
            put(stub, key("K", 1))
            with pytest.raises(Exception, match="incomplete"):
                get(stub, key("K"))
        log = [record.getMessage() for record in caplog.records]
        assert re.fullmatch(r"Commit took \d+\.\d{3} ms: \d+ bytes in, \d+ bytes out", log[0])
        assert re.match(r"Lookup took .* bytes in, INVALID_ARGUMENT: ", log[1])
