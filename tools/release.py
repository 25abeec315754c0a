"""Prepare a release: `make release VERSION=0.2.0`.

Dates the changelog's section, writes the version into both packages, commits, builds into `dist`,
checks the archives and tags the commit. A failure leaves the repository as it was. Publishing is
the owner's; the last lines printed are its commands.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
from pathlib import Path

from tools import dist

VERSION_FILES = ("userlock/_version.py", "emulator/userlock_emulator/_version.py")
#: They name a wheel by its path.
WHEEL_FILES = ("examples/appengine/requirements.txt", "examples/cloudrun/requirements.txt")
URL_FILES = ("pyproject.toml", "emulator/pyproject.toml")
_UNRELEASED = "## [Unreleased]"
_PLACEHOLDER = "OWNER"


class Refused(Exception):
    """The release cannot be prepared. The text says why, and what to do."""


def git(root: Path, *arguments: str) -> str:
    """Return the output of git, without the line end."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def check(root: Path, version: str) -> None:
    """Raise `Refused` unless the version can be released from here."""
    if re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version) is None:
        raise Refused(f"{version!r} is no version. To fix it: make release VERSION=0.2.0")
    if git(root, "status", "--porcelain"):
        raise Refused("there are changes that are not committed. To fix it: commit or stash them")
    changelog = (root / "CHANGELOG.md").read_text()
    if git(root, "tag", "--list", f"v{version}") or f"## [{version}]" in changelog:
        raise Refused(f"version {version} exists. To fix it: name a new one")
    if not re.search(r"^- ", section(changelog), re.MULTILINE):
        raise Refused(
            f"the section {_UNRELEASED} of CHANGELOG.md is empty. To fix it: list the changes"
        )
    for name in URL_FILES:
        if _PLACEHOLDER in (root / name).read_text():
            raise Refused(
                f"{name} has the placeholder {_PLACEHOLDER}. To fix it: name the repository's "
                f"owner in {' and '.join(URL_FILES)}, and commit that"
            )


def section(changelog: str) -> str:
    """Return the text of the changes that are not released."""
    return changelog.partition(f"{_UNRELEASED}\n")[2].partition("\n## ")[0]


def write(root: Path, version: str, day: datetime.date) -> None:
    """Write the version, and date the changelog's section."""
    said = dict.fromkeys(VERSION_FILES, (r'(__version__ = )".*"', rf'\1"{version}"'))
    said |= dict.fromkeys(WHEEL_FILES, (r"(/userlock-)[^-]+", rf"\g<1>{version}"))
    for name, (pattern, new) in said.items():
        file = root / name
        text, count = re.subn(pattern, new, file.read_text())
        assert count == 1, name
        file.write_text(text)
    changelog = root / "CHANGELOG.md"
    dated = f"{_UNRELEASED}\n\n## [{version}] - {day.isoformat()}\n"
    changelog.write_text(changelog.read_text().replace(f"{_UNRELEASED}\n", dated, 1))


def release(root: Path, version: str, day: datetime.date, folder: Path) -> None:
    """Commit, build, check and tag."""
    check(root, version)
    before = git(root, "rev-parse", "HEAD")
    try:
        write(root, version, day)
        git(root, "commit", "--all", "--message", f"Release {version}")
        dist.make(folder, root)
        git(root, "tag", "--annotate", f"v{version}", "--message", f"Release {version}")
    except BaseException:
        git(root, "reset", "--hard", before)  # there were no other changes
        raise


def main() -> None:
    """Prepare the release that the command line names."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.partition("\n")[0])
    parser.add_argument("--check-only", action="store_true", help="change nothing")
    parser.add_argument("version")
    options = parser.parse_args()
    version = options.version
    try:
        if options.check_only:
            check(dist.ROOT, version)
            return
        release(dist.ROOT, version, datetime.datetime.now(datetime.UTC).date(), Path("dist"))
    except Refused as error:
        parser.exit(2, f"make release: {error}\n")
    print(f"\nPrepared, and not published. To publish it:\n  git push origin HEAD v{version}")
    print("  twine upload dist/*")


if __name__ == "__main__":
    main()
