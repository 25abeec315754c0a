"""The mutation run on a small checkout: a killed fault, one that survives, one never reached."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tools import mutants

SOURCE = '''"""Sums."""


def larger(a: int, b: int) -> bool:
    """Return whether a is larger; a text."""
    return a > b


def unused() -> None:
    print(not larger)
'''
TESTS = """
from small import sums

def test_larger():
    assert sums.larger(2, 1)

def test_smaller():
    assert not sums.larger(1, 2)
"""


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    for name, text in (("small/sums.py", SOURCE), ("tests/test_sums.py", TESTS)):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    written = tmp_path / "outcomes.json"
    options = f"--root {root} --paths small --test-paths tests --jobs 1 --json {written}"
    assert mutants.main([*options.split(), "--count", "100"]) == 0
    outcomes = {
        (each["operator"], each["line"]): each["outcome"]
        for each in json.loads(written.read_text())
    }
    assert outcomes == {
        ("return", 6): "killed",
        ("comparison", 6): "survived",  # no test tries equal numbers
        ("deletion", 10): "not reached",
        ("not", 10): "not reached",
    }
    assert "1 of 4 killed: 25.0 %" in capsys.readouterr().out
    assert (root / "small/sums.py").read_text() == SOURCE
