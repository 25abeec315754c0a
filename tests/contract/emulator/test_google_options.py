"""The emulator in the place of Google's: its options, its requests, the line that says it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml

import userlock_emulator
from sample_app.stack import ports
from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.process import ROOT, EmulatorProcess, command, run_to_end
from tests.contract.emulator.test_process import assert_refused, lookup, put
from tests.unit.emulator.builders import PROJECT, entity, key
from userlock_emulator.datastore.protos import CommitRequest, Mutation
from userlock_emulator.google_options import GOOGLES_DATA

#: What `gcloud beta emulators datastore env-init` (Cloud SDK 528) prints.
ENV_INIT = {
    "DATASTORE_DATASET": "mine",
    "DATASTORE_EMULATOR_HOST": "{host}",
    "DATASTORE_EMULATOR_HOST_PATH": "{host}/datastore",
    "DATASTORE_HOST": "http://{host}",
    "DATASTORE_PROJECT_ID": "mine",
}


def post(host: str, path: str) -> int:
    request = urllib.request.Request(f"http://{host}{path}", method="POST")
    with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310 - http
        return int(response.status)


class TestOptions:
    def test_as_gcloud_starts_its_own(self, tmp_path: Path) -> None:
        """The line of testcontainers and of many scripts."""
        port = ports.any_free()
        arguments = [
            *("start", "--project", "mine", f"--host-port=127.0.0.1:{port}"),
            *("--no-store-on-disk", "--consistency=1.0", "--data-dir", str(tmp_path), "--quiet"),
            "--use-firestore-in-datastore-mode",
        ]
        with EmulatorProcess(*arguments, port=port) as process:
            assert process.host == f"127.0.0.1:{port}"
            put(process.host)
        assert [each.name for each in tmp_path.iterdir()] == ["env.yaml"]

    def test_as_gcloud_calls_the_program(self, tmp_path: Path) -> None:
        arguments = [
            *("start", "--host=127.0.0.1", "-p", "0", "--store_on_disk=True"),
            *("--allow_remote_shutdown", "--firestore_in_datastore_mode", str(tmp_path)),
        ]
        with EmulatorProcess(*arguments) as process:
            put(process.host)
        with EmulatorProcess("--data-dir", str(tmp_path)) as process:
            assert lookup(process.host) == 1

    def test_entity_groups(self) -> None:
        """The legacy mode, in which 26 entity groups are too many for one transaction."""
        with EmulatorProcess("--enable_entity_groups=true", "--testing") as process:
            stub = Stub(process.host)
            request = CommitRequest(
                project_id=PROJECT,
                mode=CommitRequest.TRANSACTIONAL,
                mutations=[Mutation(upsert=entity(key("K", i))) for i in range(1, 27)],
            )
            request.single_use_transaction.read_write.SetInParent()
            with pytest.raises(Exception, match="entity groups"):
                stub.call("Commit", request)
            stub.close()

    @pytest.mark.parametrize("spelling", ["--require-indexes", "--require_indexes"])
    def test_required_indexes_need_a_file(self, spelling: str) -> None:
        assert_refused(run_to_end("--port", "0", spelling), "index file")

    @pytest.mark.parametrize(
        ("text", "host"),
        [("[::1]:{}", "[::1]:{}"), (":{}", "127.0.0.1:{}"), ("{}", "127.0.0.1:{}")],
    )
    def test_host_and_port_in_one(self, text: str, host: str) -> None:
        port = ports.any_free()
        with EmulatorProcess("--host-port", text.format(port), port=port) as process:
            assert process.first_line.removeprefix("export DATASTORE_EMULATOR_HOST=").strip(
                "'"
            ) == host.format(port)
            assert post(host.format(port), "/reset") == 200

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["--consistency=0.9"], "every query sees every commit"),
            (["--consistency=x"], "every query sees every commit"),
            (["--database-mode=firestore-native"], "only datastore-mode"),
            (["--auto_id_policy=SEQUENTIAL"], "SCATTERED"),
            (["--storage_file=x"], "--data-dir"),
            (["--allow_reserved_kinds"], "refused, as by the service"),
            (["--import-data", "x"], "/v1/projects/PROJECT:import"),
            (["--export-on-exit=x"], "/v1/projects/PROJECT:export"),
            (["--rules=x"], "Native"),
            (["--store_index_configuration_on_disk=true"], "--indexes auto"),
            (["--store-on-disk"], "--store-on-disk needs --data-dir"),
            (["--testing", "--store-on-disk"], "contradict"),
            (["one", "--data-dir", "two"], "two data folders"),
            (["--require-indexes", "--indexes", "off"], "--indexes off"),
            (["--enable-entity-groups", "--concurrency-mode", "optimistic"], "optimistic"),
            (["--host-port", "::1:8081"], "HOST:PORT"),
            (["--host-port", "[::1]8081"], "[ADDRESS]:PORT"),
            (["--host-port", "localhost:99999"], "HOST:PORT"),
            (["--host-port", ""], "HOST:PORT"),
        ],
    )
    def test_what_cannot_be_done_is_refused_with_the_reason(
        self, arguments: list[str], reason: str
    ) -> None:
        assert_refused(run_to_end("start", "--port", "0", *arguments), reason)

    def test_data_of_googles_is_not_passed_over_in_silence(self, tmp_path: Path) -> None:
        (tmp_path / GOOGLES_DATA).parent.mkdir(parents=True)
        (tmp_path / GOOGLES_DATA).touch()
        with subprocess.Popen(
            command("--port", "0", "--data-dir", str(tmp_path)),
            cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            assert process.stderr is not None
            assert "local_db.bin is data of Google's emulator" in process.stderr.readline()
            process.terminate()


class TestRequests:
    def test_health(self, server: userlock_emulator.Emulator) -> None:
        with urllib.request.urlopen(f"http://{server.host}/") as response:
            assert (response.status, response.read().strip()) == (200, b"Ok")

    def test_shutdown_ends_the_process_after_the_reply(self, tmp_path: Path) -> None:
        with EmulatorProcess("--data-dir", str(tmp_path), "--memcached", "0") as process:
            put(process.host)
            assert post(process.host, "/shutdown") == 200
            assert process.process.wait(20) == 0
        with EmulatorProcess("--data-dir", str(tmp_path)) as process:
            assert lookup(process.host) == 1

    def test_shutdown_stops_an_emulator_in_this_process(self) -> None:
        with userlock_emulator.start() as emulator:
            assert post(emulator.host, "/shutdown") == 200
            emulator.wait()
            with pytest.raises(OSError, match="refused"):
                post(emulator.host, "/reset")

    @pytest.mark.parametrize("path", ["/shutdown", "/reset"])
    def test_a_link_or_a_foreign_page_does_neither(
        self, server: userlock_emulator.Emulator, path: str
    ) -> None:
        url = f"http://{server.host}{path}"
        foreign = urllib.request.Request(
            url, method="POST", headers={"Origin": "http://evil.example"}
        )
        for request, status in ((urllib.request.Request(url), "405"), (foreign, "403")):
            with pytest.raises(OSError, match=status):
                urllib.request.urlopen(request)  # noqa: S310 - http
        assert lookup(server.host) == 0


class TestRunning:
    def test_the_line_that_runners_wait_for(self) -> None:
        """On standard output as Google's program prints it; on the other as gcloud does."""
        with subprocess.Popen(
            command("--port", "0"),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stderr.readline() == "[datastore] Dev App Server is now running.\n"
            host = process.stdout.readline().rpartition("=")[2].rstrip()
            assert lookup(host) == 0
            process.terminate()
            assert "Dev App Server is now running." in process.stdout.read()


class TestEnv:
    def test_the_variables_of_env_init(self, tmp_path: Path) -> None:
        with EmulatorProcess("--data-dir", str(tmp_path), "--project", "mine") as process:
            printed = run_to_end("env", "--data-dir", str(tmp_path), "--shell", "bash").stdout
            file = yaml.safe_load((tmp_path / "env.yaml").read_text())
            expected = {
                name: setting.format(host=process.host) for name, setting in ENV_INIT.items()
            }
            assert expected.items() <= file.items()
            seen = subprocess.check_output(["bash", "-c", f"{printed}\nenv"], text=True)
            assert {f"{name}={text}" for name, text in expected.items()} <= set(seen.splitlines())
            assert (tmp_path / "env.yaml").stat().st_mode & 0o077 == 0

    @pytest.mark.skipif(shutil.which("gcloud") is None, reason="needs the Cloud SDK")
    def test_gcloud_reads_ours(self, tmp_path: Path) -> None:
        with EmulatorProcess("--data-dir", str(tmp_path), "--project", "mine") as process:
            printed = subprocess.check_output(
                ["gcloud", "beta", "emulators", "datastore", "env-init", "--data-dir", tmp_path],
                env=os.environ | {"CLOUDSDK_CONFIG": str(tmp_path / "gcloud")},
                text=True,
            )
            assert f"export DATASTORE_EMULATOR_HOST={process.host}\n" in printed

    def test_they_are_unset(self) -> None:
        printed = run_to_end("env", "--unset", "--shell", "bash").stdout
        assert [f"unset {name}" in printed.splitlines() for name in ENV_INIT] == [True] * 5

    def test_a_file_of_googles(self, tmp_path: Path) -> None:
        (tmp_path / "env.yaml").write_text("---\nDATASTORE_HOST: http://localhost:9483\n")
        printed = run_to_end("env", "--data-dir", str(tmp_path), "--shell", "bash").stdout
        assert printed == "export DATASTORE_HOST=http://localhost:9483\n"

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
    def test_a_file_that_cannot_be_used(
        self, tmp_path: Path, text: str | None, reason: str
    ) -> None:
        if text is not None:
            (tmp_path / "env.yaml").write_text(text)
        assert_refused(run_to_end("env", "--data-dir", str(tmp_path)), reason)
