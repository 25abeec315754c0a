"""docs/adoption.md works as it stands: its files, its commands, and what they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.cloud import ndb

from userlock.cli.entry import main

DOCS = (Path(__file__).parents[3] / "docs" / "adoption.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", DOCS, re.DOTALL | re.MULTILINE))


@pytest.fixture
def project(
    pytester: pytest.Pytester, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The application of the page, with its tests."""
    # ndb knows one class per kind in a process; the page's are its own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    pytester.makeini("[pytest]\npythonpath = .\n")
    for name, source in FILES.items():
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    return pytester.path


def test_the_afternoon(project: Path, pytester: pytest.Pytester) -> None:
    assert set(FILES) == {
        "app/models.py",
        "app/points.py",
        "tests/conftest.py",
        "tests/test_points.py",
    }
    forgotten = pytester.runpytest_inprocess()
    forgotten.assert_outcomes(passed=4, failed=1)

    written = pytester.runpytest_inprocess("--userlock-baseline-write")
    written.assert_outcomes(passed=5)
    block = re.search(r"^    \$ pytest --userlock-baseline-write\n((?:    .*\n)+)", DOCS, re.M)
    assert block is not None
    shown = [line.removeprefix("    ") for line in block[1].splitlines()]
    assert "\n".join(shown) in written.stdout.str()

    held = pytester.runpytest_inprocess("--userlock-baseline=userlock-baseline.txt")
    held.assert_outcomes(passed=5)

    points = project / "app" / "points.py"
    points.write_text(points.read_text().replace("    with userlock", "    if True or userlock"))
    new = pytester.runpytest_inprocess("--userlock-baseline=userlock-baseline.txt")
    new.stdout.fnmatch_lines(["new    app/points.py::spend PutWithoutLock Learner"])


def test_shards(
    project: Path, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "userlock-baseline.txt").write_text("")
    pytester.runpytest_inprocess("--userlock-report=shard1.jsonl", "-k", "finish")
    pytester.runpytest_inprocess("--userlock-report=shard2.jsonl", "-k", "not finish")
    line = next(each for each in DOCS.splitlines() if "check --strict" in each)
    assert main(line.split()[2:]) == 1
    assert "new    app/points.py::finish_exercise PutWithoutLock Learner" in capsys.readouterr().out


def test_the_configuration(project: Path, pytester: pytest.Pytester) -> None:
    block = re.search(r"^    \[tool\.pytest\.ini_options\]\n((?:    .*\n)+)", DOCS, re.M)
    assert block is not None
    code = re.search(r"^    (userlock_test_code = .*)$", DOCS, re.M)
    assert code is not None
    settings = [line.strip() for line in block[0].splitlines()]
    settings += ['pythonpath = ["."]', code[1]]
    (project / "tox.ini").unlink()
    (project / "pyproject.toml").write_text("\n".join(settings))
    (project / "userlock-baseline.txt").write_text(
        "app/points.py::finish_exercise PutWithoutLock Learner\n"
    )
    pytester.runpytest_inprocess("--strict-config").assert_outcomes(passed=5)


def test_it_is_linked() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    assert "(docs/adoption.md)" in readme
