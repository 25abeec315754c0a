"""The benchmarks run, and notice a lock that excludes nobody."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks import locks, racers
from benchmarks.__main__ import SECTIONS, main
from benchmarks.contest import Contest, ExclusionViolated
from benchmarks.figures import Section
from benchmarks.idempotency_peers.contestants import CONTESTANTS
from benchmarks.idempotency_peers.situations import SITUATIONS
from benchmarks.racers import Rules, Times
from tests.documents import ROOT
from tests.servers import real


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_quick_run_gives_every_figure_as_json_and_the_waits_as_a_plot(tmp_path: Path) -> None:
    real("memcached", "memcached")
    file = tmp_path / "waits.svg"
    done = run("-m", "benchmarks", "--quick", "--json", "--plot", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert {record["section"] for record in records} == {"machine", *SECTIONS}
    # No contender beats the floor by much.
    assert [each for each in records if not each.get("ratio", 1) > 0.5] == []
    noted = {(record["section"], record["note"]) for record in records if "note" in record}
    assert {("fairness", why) for why in locks.missing()} <= noted
    assert file.read_text().startswith("<svg ")


@pytest.mark.slow
def test_a_quick_run_of_one_section_gives_a_table() -> None:
    done = run("-m", "benchmarks", "--quick", "--only", "provenance")
    assert (done.returncode, done.stderr) == (0, "")
    assert "UserModel" in done.stdout


def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def violated(*, quick: bool) -> Section:
        raise ExclusionViolated("userlock VIOLATED MUTUAL EXCLUSION")

    monkeypatch.setitem(SECTIONS, "provenance", violated)
    assert main(["--only", "provenance"]) == 1
    assert "VIOLATED MUTUAL EXCLUSION" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--quick"]) == 2
    assert "apt-get install memcached" in capsys.readouterr().err


class _Lock:
    """A lock of this process, or one that lets all in."""

    def __init__(self, mutex: threading.Lock | None) -> None:
        self._mutex = mutex

    def acquire(self) -> bool:
        return self._mutex is None or self._mutex.acquire()

    def release(self) -> None:
        if self._mutex is not None:
            self._mutex.release()


@pytest.mark.parametrize("excludes", [True, False], ids=["a-lock", "control"])
def test_visits_that_overlap_are_found(excludes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mutex = threading.Lock() if excludes else None
    monkeypatch.setattr(racers, "_locks", [_Lock(mutex) for _ in range(4)])
    now = time.monotonic()
    times = Times(now, now + 0.02, now + 0.12)
    rules = Rules(section=0.002, most_think=0.0, window=0.1, warm_up=0.4)
    diaries, _ = racers.race("", "", 0, rules, times)
    contest = Contest(times.opened_at, times.closed_at, diaries)
    assert contest.errors() == []
    assert bool(contest.overlaps()) is not excludes


@pytest.mark.slow
def test_ndb_without_userlock_is_ndb_as_it_was() -> None:
    done = run(
        "-c",
        "from benchmarks import pristine\n"
        "from google.cloud.ndb import model\n"
        "original = model._entity_from_protobuf\n"
        "from userlock import UserModel\n"
        "hooked = model._entity_from_protobuf\n"
        "assert hooked is not original\n"
        "with pristine.restored():\n"
        "    assert model._entity_from_protobuf is original\n"
        "    assert not pristine.replaced()\n"
        "assert model._entity_from_protobuf is hooked\n",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_about_peers_has_the_situations_and_packages_of_the_program() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text().split("## Idempotency packages")[1]
    page = page.split("\n## ")[0]
    said = [f"{number}. {each.line}" for number, each in enumerate(SITUATIONS, 1)]
    assert re.findall(r"^\d+\. .+$", page, re.MULTILINE) == said
    rows = [line.split("|") for line in page.splitlines() if line.startswith("|")][2:]
    assert [row[1].strip() for row in rows] == [each.name for each in CONTESTANTS]
    for _, _, right, wrong, _ in rows:  # each situation counts once
        assert int(right) + len(re.findall(r"\d+", wrong)) == len(SITUATIONS)
