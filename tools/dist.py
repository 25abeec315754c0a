"""Build both packages, and check what an index would be given: `python -m tools.dist [FOLDER]`.

The same commit gives the same bytes: archives carry the time of the commit (SOURCE_DATE_EPOCH), not
that of the build.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The folders of the packages' sources, by the names that the packages' files begin with.
PACKAGES = {"userlock": ".", "userlock_emulator": "emulator"}


def build(folder: Path, root: Path = ROOT) -> None:
    """Write a source archive of each package, and a wheel that is built from it."""
    environment = {"SOURCE_DATE_EPOCH": _committed_at(root), **os.environ}
    for source in PACKAGES.values():
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, root / source],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )


def check(folder: Path) -> None:
    """Have twine check the metadata and the readmes, warnings as errors."""
    files = sorted(str(file) for file in folder.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)


def make(folder: Path, root: Path = ROOT) -> None:
    """Build and check in a folder of its own; an earlier build there is replaced."""
    folder.mkdir(exist_ok=True)
    old = list(folder.iterdir())
    for file in old:
        if not file.name.startswith(tuple(f"{name}-" for name in PACKAGES)):
            raise SystemExit(f"{file} is no package of ours. To fix it: name another folder")
    for file in old:
        file.unlink()
    build(folder, root)
    check(folder)


def _committed_at(root: Path) -> str:
    done = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    make(Path(sys.argv[1] if sys.argv[1:] else "dist"))
