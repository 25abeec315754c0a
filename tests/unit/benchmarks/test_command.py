"""The command `python -m benchmarks` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import locks
from benchmarks.__main__ import SECTIONS, main
from benchmarks.contest import ExclusionViolated
from benchmarks.figures import Section
from tests.servers import real

TIMES = {
    "pair",
    "p50",
    "p99",
    "max",
    "longest wait",
    "requests",
    "entity",
    "visit",
    "killed",
    "Jain",
}
ROOT = Path(__file__).parents[3]


def _run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.long
def test_a_quick_run_gives_every_figure_as_json_and_the_waits_as_a_plot(tmp_path: Path) -> None:
    real("memcached", "memcached")
    file = tmp_path / "waits.svg"
    done = _run("--quick", "--json", "--plot", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert {record["section"] for record in records} == {"machine", *SECTIONS}
    figures = [
        record for record in records if record["section"] != "machine" and "note" not in record
    ]
    assert all(
        {"table", "contender", "metric", "value", "unit", "samples"} <= record.keys()
        for record in figures
    )
    # Every measured time is positive, and no contender beats the floor by much.
    assert [each for each in figures if each["metric"] in TIMES and not each["value"] > 0] == []
    assert [each for each in figures if "ratio" in each and not each["ratio"] > 0.5] == []
    assert str(ROOT) not in done.stdout
    # Each section names the contenders that are missing.
    noted = {(record["section"], record["note"]) for record in records if "note" in record}
    assert {("fairness", why) for why in locks.missing()} <= noted
    assert file.read_text().startswith("<svg ")


@pytest.mark.slow
def test_a_quick_run_of_one_section_gives_a_table() -> None:
    done = _run("--quick", "--only", "provenance")
    assert (done.returncode, done.stderr) == (0, "")
    assert "UserModel" in done.stdout
    assert "Hand-off" not in done.stdout


def test_a_missing_memcached_is_reported_with_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--quick"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "apt-get install memcached" in printed.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "batch", "--plot", "waits.svg"], "fairness"),
        (["--plot", "no-such-folder/waits.svg"], "no-such-folder"),
    ],
)
def test_an_impossible_plot_is_refused_before_any_measurement(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_violation_of_mutual_exclusion_has_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def violated(*, quick: bool) -> Section:
        raise ExclusionViolated("userlock VIOLATED MUTUAL EXCLUSION")

    monkeypatch.setitem(SECTIONS, "provenance", violated)
    assert main(["--only", "provenance"]) == 1
    assert "VIOLATED MUTUAL EXCLUSION" in capsys.readouterr().err


def test_an_unknown_section_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "nonsense"])
    assert ended.value.code == 2
    assert "handoff" in capsys.readouterr().err
