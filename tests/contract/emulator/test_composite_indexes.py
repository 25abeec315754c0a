"""Composite indexes from the command line to the client."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.process import EmulatorProcess, run_to_end
from tests.unit.emulator.builders import PROJECT
from tests.unit.emulator.subject import query
from userlock_emulator.datastore.protos import RunQueryRequest

TWO_ORDERS = RunQueryRequest(project_id=PROJECT, query=query(orders=("a", "-b")))


def test_indexes_added_in_one_run_are_enforced_in_the_next(tmp_path: Path) -> None:
    path = tmp_path / "index.yaml"
    with EmulatorProcess("start", "--indexes", "auto", "--index-file", str(path)) as process:
        stub = Stub(process.host)
        stub.call("RunQuery", TWO_ORDERS)
        stub.close()
    with EmulatorProcess("start", "--index-file", str(path)) as process:
        stub = Stub(process.host)
        stub.call("RunQuery", TWO_ORDERS)
        other = RunQueryRequest(project_id=PROJECT, query=query(orders=("b", "a")))
        with pytest.raises(grpc.RpcError, match="recommended index is:\n- kind: K") as caught:
            stub.call("RunQuery", other)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        stub.close()


def test_in_the_same_process(tmp_path: Path) -> None:
    with pytest.raises(userlock_emulator.StorageError):
        userlock_emulator.start(indexes="enforced", index_file=tmp_path / "missing.yaml")
    with userlock_emulator.start(indexes="auto", index_file=tmp_path / "index.yaml") as server:
        stub = Stub(server.host)
        stub.call("RunQuery", TWO_ORDERS)
        stub.close()
    assert "direction: desc" in (tmp_path / "index.yaml").read_text()


@pytest.mark.parametrize("arguments", [["--indexes", "enforced"], ["--index-file", "/missing"]])
def test_without_a_file_it_does_not_start(arguments: list[str]) -> None:
    completed = run_to_end("start", "--port", "0", *arguments)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr.count("\n") == 1
    assert "index" in completed.stderr or "/missing" in completed.stderr
