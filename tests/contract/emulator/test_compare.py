"""The command `make compare-emulators`, on two emulators of ours, one of them altered."""

from __future__ import annotations

from pathlib import Path

import pytest

import userlock_emulator
from tools.compare.__main__ import main
from tools.compare.known import known
from tools.compare.programs import Step
from tools.compare.running import Difference
from userlock_emulator.datastore.protos import RunQueryRequest


def test_two_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with userlock_emulator.start() as other:
        monkeypatch.setenv("GOOGLE_EMULATOR", other.host)
        assert main(["--programs", "3"]) == 0
        assert "0 differences, 0 of them unexplained" in capsys.readouterr().out
        other.faults.unavailable(rpc="RunQuery")
        assert main(["--programs", "3"]) == 1
        said = (
            "UNEXPLAINED, 1 times: RunQuery, place: filter, rule: text of 1500 bytes: OK here, UNAV"
        )
        assert said in capsys.readouterr().out
    monkeypatch.delenv("GOOGLE_EMULATOR")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([]) == 0
    assert capsys.readouterr().out == "skipped\n", "there is none of Google's"


def test_a_number_of_skipped_results_is_no_list_of_them() -> None:
    step = Step("RunQuery", RunQueryRequest(), frozenset({"keys only", "order"}))
    difference = Difference(1, 1, step, "skipped results", ours=1, theirs=2, said=("", ""))
    assert known("firestore", difference) is None
