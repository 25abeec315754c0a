"""The command `make compare-emulators`, on two emulators of ours, one of them altered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import userlock_emulator
from tools.compare.__main__ import main
from tools.compare.programs import program
from tools.compare.report import lines
from tools.compare.running import ERROR, Difference, compare

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


def test_a_program_is_its_seed() -> None:
    assert list(program(3, "p")) == list(program(3, "p")) != list(program(4, "p"))
    rpcs = {step.rpc for seed in range(50) for step in program(seed, "p")}
    assert rpcs == {
        *("Lookup", "RunQuery", "RunAggregationQuery", "Commit", "BeginTransaction"),
        *("Rollback", "AllocateIds", "ReserveIds"),
    }


def test_another_rule_is_found(ours: userlock_emulator.Emulator, tmp_path: Path) -> None:
    file = tmp_path / "index.yaml"
    file.write_text("indexes:\n")
    with userlock_emulator.start(indexes="enforced", index_file=file) as strict:
        found = differences(ours.host, strict.host)
    assert {each.theirs for each in found if each.part == ERROR} == {"FAILED_PRECONDITION"}
    report = list(lines("firestore", found, known_too=False))
    assert "UNEXPLAINED" in report[0]
    assert "no matching index found" in "\n".join(report)


class TestCommand:
    @pytest.fixture(autouse=True)
    def _address(self, other: userlock_emulator.Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_EMULATOR", other.host)

    def test_two_of_ours(
        self, other: userlock_emulator.Emulator, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["--programs", "3"]) == 0
        assert "0 differences, 0 of them unexplained" in capsys.readouterr().out
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
