"""The command `make compare-emulators`, on two emulators of ours, one of them altered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Stub
from tests.unit.emulator.builders import entity, key
from tools.compare.__main__ import main
from tools.compare.known import KNOWN, known
from tools.compare.programs import program
from tools.compare.report import lines, title
from tools.compare.running import ERROR, Difference, compare
from userlock_emulator.datastore.protos import CommitRequest, Mutation

MARK = "test"
SEEDS = range(1, 9)


@pytest.fixture
def other() -> Iterator[userlock_emulator.Emulator]:
    """Provide an emulator in the place of Google's."""
    with userlock_emulator.start() as running:
        yield running


def differences(ours: str, theirs: str) -> list[Difference]:
    return list(compare(ours, theirs, SEEDS, mark=MARK))


@pytest.fixture
def ours() -> Iterator[userlock_emulator.Emulator]:
    with userlock_emulator.start() as running:
        yield running


def test_two_of_ours_are_the_same(
    ours: userlock_emulator.Emulator, other: userlock_emulator.Emulator
) -> None:
    assert differences(ours.host, other.host) == []


def test_a_program_is_its_seed() -> None:
    assert list(program(3, "p")) == list(program(3, "p")) != list(program(4, "p"))
    rpcs = {step.rpc for seed in range(50) for step in program(seed, "p")}
    assert rpcs == {
        *("Lookup", "RunQuery", "RunAggregationQuery", "Commit", "BeginTransaction"),
        *("Rollback", "AllocateIds", "ReserveIds"),
    }


def test_an_error_is_found(
    ours: userlock_emulator.Emulator, other: userlock_emulator.Emulator
) -> None:
    other.faults.unavailable(rpc="RunQuery")
    (found,) = differences(ours.host, other.host)
    assert (found.step.rpc, found.part) == ("RunQuery", ERROR)
    assert title(found) == "RunQuery: OK here, UNAVAILABLE there"


def test_a_write_that_was_lost_is_found(
    ours: userlock_emulator.Emulator, other: userlock_emulator.Emulator
) -> None:
    other.faults.abort(kind="K", skip=1)
    assert differences(ours.host, other.host)[0].theirs == "ABORTED"


def test_other_data_is_found(
    ours: userlock_emulator.Emulator, other: userlock_emulator.Emulator
) -> None:
    project = f"compare-{MARK}-1"
    request = CommitRequest(
        project_id=project,
        mode=CommitRequest.NON_TRANSACTIONAL,
        mutations=[Mutation(upsert=entity(key("K", 99, project=project), a=1, b=1, c=1))],
    )
    stub = Stub(other.host)
    stub.call("Commit", request)
    stub.close()
    found = differences(ours.host, other.host)
    assert {each.seed for each in found} == {1}
    assert "results" in {each.part for each in found}


def test_another_rule_is_found(ours: userlock_emulator.Emulator, tmp_path: Path) -> None:
    file = tmp_path / "index.yaml"
    file.write_text("indexes:\n")
    with userlock_emulator.start(indexes="enforced", index_file=file) as strict:
        found = differences(ours.host, strict.host)
    assert {each.theirs for each in found if each.part == ERROR} == {"FAILED_PRECONDITION"}
    report = list(lines("firestore", found, known_too=False))
    assert "UNEXPLAINED" in report[0]
    assert "no matching index found" in "\n".join(report)


def test_known_differences_are_of_one_emulator(
    ours: userlock_emulator.Emulator, other: userlock_emulator.Emulator
) -> None:
    """An entry explains what it describes, on the emulators that it names."""
    other.faults.unavailable(rpc="RunQuery")
    (found,) = differences(ours.host, other.host)
    assert known("datastore", found) is None
    assert known("firestore", found) is None
    assert len({each.title for each in KNOWN}) == len(KNOWN)


class TestCommand:
    @pytest.fixture(autouse=True)
    def _address(self, other: userlock_emulator.Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_EMULATOR", other.host)

    def test_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--programs", "3"]) == 0
        assert "0 differences, 0 of them unexplained" in capsys.readouterr().out

    def test_a_difference(
        self, other: userlock_emulator.Emulator, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other.faults.unavailable(rpc="RunQuery")
        assert main(["--programs", "3"]) == 1
        assert "UNEXPLAINED, 1 times: RunQuery: OK here, UNAVAILABLE" in capsys.readouterr().out

    def test_without_any_of_googles_it_is_skipped(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("GOOGLE_EMULATOR")
        monkeypatch.setenv("PATH", str(tmp_path))
        assert main([]) == 0
        assert capsys.readouterr().out == "skipped\n"
