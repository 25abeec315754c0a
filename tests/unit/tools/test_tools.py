"""Each tool does its work once."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest

from tests.documents import ROOT
from tools import dist, release, structure, timelines
from tools.load.memory import LEAK_BYTES, Sample, leak_bytes
from tools.traffic.__main__ import main as traffic

# --- make release -------------------------------------------------------------------------------

DAY = datetime.date(2026, 12, 1)
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- A change.\n\n## [0.1.0] - 2026-01-01\n\n- Old.\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a repository that can be released; the build is tried by `make dist`."""
    root = tmp_path / "repository"
    for name in release.VERSION_FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('__version__ = "0.1.0"\n')
    for name in release.WHEEL_FILES:
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("./wheels/userlock-0.1.0-py3-none-any.whl[flask]\n")
    for name in release.URL_FILES:
        (root / name).write_text('Homepage = "https://github.com/acme/userlock"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    release.git(root, "init", "--quiet")
    release.git(root, "config", "user.name", "A developer")
    release.git(root, "config", "user.email", "developer@example.com")
    commit(root)
    monkeypatch.setattr(dist, "make", lambda folder, root: None)
    return root


def commit(root: Path) -> None:
    release.git(root, "add", "--all")
    release.git(root, "commit", "--quiet", "--message", "A change")


def test_a_release(repository: Path, tmp_path: Path) -> None:
    release.release(repository, "0.2.0", DAY, tmp_path / "dist")
    for name in release.VERSION_FILES:
        assert '__version__ = "0.2.0"' in (repository / name).read_text()
    for name in release.WHEEL_FILES:
        assert "/userlock-0.2.0-py3-none-any.whl[flask]" in (repository / name).read_text()
    changelog = (repository / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n- A change.\n" in changelog
    head = release.git(repository, "rev-parse", "HEAD")
    assert release.git(repository, "rev-list", "-1", "v0.2.0") == head
    assert release.git(repository, "status", "--porcelain") == ""


def test_this_repository_has_what_a_release_changes() -> None:
    for name in (*release.VERSION_FILES, *release.WHEEL_FILES, *release.URL_FILES):
        assert (ROOT / name).exists()
    assert release.section((ROOT / "CHANGELOG.md").read_text())


# --- make test-pythons --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "passes", "code", "says"),
    [
        ("9.1 9.2", True, 0, "passed: 9.1 · failed: none · not here: 9.2"),
        ("9.1 9.2", False, 1, "passed: none · failed: 9.1 · not here: 9.2"),
        ("9.2", True, 1, "passed: none · failed: none · not here: 9.2"),
    ],
)
def test_pythons(tmp_path: Path, versions: str, passes: bool, code: int, says: str) -> None:
    for name, exits in (
        ("python9.1", 0),
        ("tools/setup.sh", 0),
        (".venv/python9.1/bin/pytest", 0 if passes else 1),
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\nexit {exits}\n")
        file.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", ROOT / "tools/test-pythons.sh", *versions.split()],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/bin:/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, says)


# --- make load, make simulation -----------------------------------------------------------------


@pytest.mark.parametrize("each", [0, 2 * LEAK_BYTES, 16 * LEAK_BYTES])
def test_a_leak_is_measured(each: int) -> None:
    noise = Random(1)
    samples = [
        Sample(answers, int(100_000 + each * answers / 1024 + noise.uniform(-200, 200)))
        for answers in range(0, 2000, 20)
    ]
    assert leak_bytes(samples) == pytest.approx(each, abs=LEAK_BYTES / 4)


def test_a_simulated_day(capsys: pytest.CaptureFixture[str]) -> None:
    peaks = []
    for hour in ("2", "18"):
        options = ["--users", "10_000_000", "--sample", "100", "--sweep-at", hour, "--json"]
        assert traffic(options) == 0
        peaks.append(json.loads(capsys.readouterr().out)["operations_per_second_peak"])
    assert peaks[1] > 1.3 * peaks[0], "a sweep by day adds to the peak"


# --- the documentation's drawings, the structure -------------------------------------------------


@pytest.mark.parametrize("page", ["README", "docs/protocol", "docs/fencing", "docs/outbox"])
def test_timelines_are_drawn(page: str) -> None:
    markdown = (ROOT / f"{page}.md").read_text()
    found = re.findall("<svg.*?</svg>", timelines.with_drawings(markdown), re.DOTALL)
    assert found
    for each in found:
        ElementTree.fromstring(each)  # noqa: S314 (our own)


def test_structure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    (tmp_path / "house").mkdir()
    for name, source in {
        "__init__": "",
        "roof": "from house import wall\nclass Roof:\n    _tiles = 1\n",
        "wall": "import typing\nif typing.TYPE_CHECKING:\n    from house.roof import Roof\n"
        "def f(roof):\n    roof._tiles += roof._of_another_library\n",
        "floor": "def f():\n    from house.wall import f\n",
    }.items():
        (tmp_path / "house" / f"{name}.py").write_text(source)
    files = structure.sources("house")
    assert structure.cycles(structure.arrows(files)) == [["house.roof", "house.wall"]]
    assert structure.private_accesses(files) == ["house.wall:5 _tiles (house.roof)"]


@pytest.mark.parametrize("package", ["emulator", "sample_app"])
def test_there_are_no_cycles(package: str) -> None:
    """The library's are looked for by tests/unit/test_layering.py."""
    assert structure.cycles(structure.arrows(structure.sources(package))) == []
