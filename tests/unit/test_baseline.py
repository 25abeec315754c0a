"""Test baseline files: sorted lines that merge, with comments that stay."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from userlock.sites import Baseline, BaselineError, Site

FINISH = Site("app/points.py::finish", "PutWithoutLock", "Learner")
AWARD = Site("app/badges.py::award", "ReadWithoutLock", "Learner")
CREATE = Site("app/a b.py::create", "CreatedWithoutLock", "Learner")

TEXT = """\
# Ours: see the wiki.

# the nightly job, next quarter
app/badges.py::award ReadWithoutLock Learner  # ticket 4711
app/points.py::finish PutWithoutLock Learner
"""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


class TestText:
    def test_lines_are_sorted_one_a_site(self) -> None:
        text = Baseline([FINISH, CREATE, AWARD]).format()
        assert lines(text) == [
            "app/a%20b.py::create CreatedWithoutLock Learner",
            "app/badges.py::award ReadWithoutLock Learner",
            "app/points.py::finish PutWithoutLock Learner",
        ]
        assert text.startswith("# Put sites that are known")
        assert text.endswith("\n")

    def test_there_and_back(self) -> None:
        assert Baseline.parse(TEXT).format() == TEXT
        assert list(Baseline.parse(TEXT)) == [AWARD, FINISH]

    def test_an_empty_one(self) -> None:
        assert len(Baseline.parse("")) == 0
        assert Baseline.parse("").format() == ""

    def test_a_file_after_a_merge(self) -> None:
        """The file of git's `merge=union`: both sides' lines, in any order, some of them twice."""
        merged = TEXT + "# the other branch\n" + TEXT.splitlines()[3] + "\n\n" + f"{CREATE}\r\n"
        baseline = Baseline.parse(merged)
        assert set(baseline) == {AWARD, FINISH, CREATE}
        assert baseline.format().count("app/badges.py::award") == 1
        assert "# the nightly job, next quarter\n# the other branch\napp/badges" in (
            baseline.format()
        )

    def test_a_conflict_that_was_not_resolved(self) -> None:
        with pytest.raises(ValueError, match="line 1: '<<<<<<< HEAD' names no put site"):
            Baseline.parse("<<<<<<< HEAD\n" + TEXT)


class TestComparing:
    def test_new_and_stale(self) -> None:
        assert Baseline([FINISH, AWARD]).compare([CREATE, FINISH]) == ([CREATE], [AWARD])

    def test_the_sites_seen_replace_the_known_ones(self) -> None:
        text = Baseline.parse(TEXT).updated([AWARD, CREATE], keep=False).format()
        assert text == (
            "# Ours: see the wiki.\n\n"
            "app/a%20b.py::create CreatedWithoutLock Learner\n"
            "# the nightly job, next quarter\n"
            f"{AWARD}  # ticket 4711\n"
        )

    def test_the_sites_seen_are_added(self) -> None:
        assert set(Baseline.parse(TEXT).updated([CREATE], keep=True)) == {AWARD, FINISH, CREATE}

    def test_a_comment_goes_with_its_line(self) -> None:
        text = Baseline.parse(TEXT).updated([FINISH], keep=False).format()
        assert "4711" not in text
        assert "next quarter" not in text


class TestFiles:
    def test_written_and_read(self, tmp_path: Path) -> None:
        path = tmp_path / "baseline.txt"
        assert Baseline().rewrite(path, [FINISH], keep=False) == (1, [FINISH], [])
        assert list(Baseline.read(path)) == [FINISH]
        assert stat.S_IMODE(path.stat().st_mode) & 0o400
        path.chmod(0o664)
        assert Baseline([FINISH]).rewrite(path, [AWARD], keep=False) == (1, [AWARD], [FINISH])
        assert list(Baseline.read(path)) == [AWARD]
        assert stat.S_IMODE(path.stat().st_mode) == 0o664
        assert [each.name for each in tmp_path.iterdir()] == ["baseline.txt"]

    def test_a_file_that_cannot_be_written_is_unchanged(self, tmp_path: Path) -> None:
        path = tmp_path / "baseline.txt"
        path.mkdir()
        with pytest.raises(OSError, match="directory"):
            Baseline().rewrite(path, [FINISH], keep=False)
        assert [each.name for each in tmp_path.iterdir()] == ["baseline.txt"]

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(BaselineError, match="there is no baseline"):
            Baseline.read(tmp_path / "baseline.txt")
        assert len(Baseline.read(tmp_path / "baseline.txt", missing_ok=True)) == 0

    def test_an_invalid_file(self, tmp_path: Path) -> None:
        path = tmp_path / "baseline.txt"
        path.write_text(f"{FINISH}\nnonsense\n")
        with pytest.raises(BaselineError, match=r"baseline\.txt, line 2: 'nonsense' names no"):
            Baseline.read(path)
        with pytest.raises(BaselineError, match="cannot be read: Is a directory"):
            Baseline.read(tmp_path)
