"""The tests on several Pythons: the script's report."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT


def run(folder: Path, *versions: str) -> tuple[int, str]:
    """Run the script with the programs of a folder; return its exit code and last line."""
    done = subprocess.run(
        ["/bin/sh", ROOT / "tools/test-pythons.sh", *versions],
        cwd=folder,
        env={"PATH": f"{folder}:/bin:/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()[-1]


def provide(folder: Path, version: str, *, passes: bool) -> None:
    """Provide a Python whose tests pass or fail, and a set-up that does nothing."""
    for name, code in (
        (f"python{version}", "exit 0"),
        ("tools/setup.sh", "exit 0"),
        (f".venv/python{version}/bin/pytest", f"exit {0 if passes else 1}"),
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{code}\n")
        file.chmod(0o755)


@pytest.mark.parametrize(
    ("passes", "code", "says"),
    [
        (True, 0, "passed: 9.1 · failed: none · not on the PATH: 9.2"),
        (False, 1, "passed: none · failed: 9.1 · not on the PATH: 9.2"),
    ],
)
def test_each_is_named(tmp_path: Path, passes: bool, code: int, says: str) -> None:
    provide(tmp_path, "9.1", passes=passes)
    assert run(tmp_path, "9.1", "9.2") == (code, says)


def test_none_is_no_success(tmp_path: Path) -> None:
    assert run(tmp_path, "9.2") == (1, "passed: none · failed: none · not on the PATH: 9.2")
