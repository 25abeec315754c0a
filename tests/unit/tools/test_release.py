"""The preparation of a release, in a repository of its own."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import dist, release

DAY = datetime.date(2026, 12, 1)
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- A change.\n\n## [0.1.0] - 2026-01-01\n\n- Old.\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a repository that can be released; the build has tests of its own."""
    root = tmp_path / "repository"
    for name in release.VERSION_FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('"""The version."""\n\n__version__ = "0.1.0"\n')
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
    changelog = (repository / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n- A change.\n" in changelog
    assert release.git(repository, "rev-list", "-1", "v0.2.0") == head(repository)
    assert release.git(repository, "status", "--porcelain") == ""
    # The next one has no changes yet.
    with pytest.raises(release.Refused, match="is empty"):
        release.release(repository, "0.3.0", DAY, tmp_path / "dist")


def head(root: Path) -> str:
    return release.git(root, "rev-parse", "HEAD")


def dirty(root: Path) -> None:
    (root / "notes.txt").write_text("a draft")


def tagged(root: Path) -> None:
    release.git(root, "tag", "v0.2.0")


def listed(root: Path) -> None:
    (root / "CHANGELOG.md").write_text(CHANGELOG + "\n## [0.2.0] - 2026-02-01\n")
    commit(root)


def unchanged(root: Path) -> None:
    (root / "CHANGELOG.md").write_text(CHANGELOG.replace("- A change.\n", "Nothing yet.\n"))
    commit(root)


def without_owner(root: Path) -> None:
    (root / release.URL_FILES[1]).write_text('Homepage = "https://github.com/OWNER/userlock"\n')
    commit(root)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (dirty, "not committed"),
        (tagged, "version 0.2.0 exists"),
        (listed, "version 0.2.0 exists"),
        (unchanged, "is empty"),
        (without_owner, "the placeholder OWNER"),
    ],
)
def test_refused(
    repository: Path, tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    spoil(repository)
    before = head(repository)
    with pytest.raises(release.Refused, match=says) as caught:
        release.release(repository, "0.2.0", DAY, tmp_path / "dist")
    assert "To fix it: " in str(caught.value)
    assert head(repository) == before


@pytest.mark.parametrize("version", ["", "v0.2.0", "0.2", "0.2.0.dev1", "--help"])
def test_no_version(repository: Path, version: str) -> None:
    with pytest.raises(release.Refused, match="is no version"):
        release.check(repository, version)


def test_a_build_that_fails_changes_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = head(repository)

    def fail(_folder: Path, _root: Path) -> None:
        raise SystemExit("no space left")

    monkeypatch.setattr(dist, "make", fail)
    with pytest.raises(SystemExit):
        release.release(repository, "0.2.0", DAY, tmp_path / "dist")
    assert head(repository) == before
    assert release.git(repository, "status", "--porcelain") == ""
    assert release.git(repository, "tag") == ""
    release.git(repository, "diff", "--exit-code", before)


def test_this_repository_has_what_it_changes() -> None:
    for name in (*release.VERSION_FILES, *release.URL_FILES):
        assert (dist.ROOT / name).exists()
    assert release.section((dist.ROOT / "CHANGELOG.md").read_text())


def test_a_folder_of_something_else_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "userlock-0.1.0.tar.gz").touch()
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(SystemExit, match=r"thesis\.doc is no package of ours"):
        dist.make(tmp_path)
    assert (tmp_path / "userlock-0.1.0.tar.gz").exists()
