"""A process of the chaos run with a wrong end is found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.chaos.crew import how_it_ended
from tests.chaos.findings import Kind

_WAITS = "import sys; sys.stdin.read()"


def ended(code: str, *, patience: float = 30.0) -> tuple[Kind, str] | None:
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True) as child:
        return how_it_ended(child, patience)


def test_a_process_that_ends_by_itself() -> None:
    assert ended("") is None


def test_a_process_that_never_ends() -> None:
    assert ended(_WAITS, patience=0.0) == (Kind.STUCK, "stuck at")


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_a_process_that_ends_with_an_error(code: str) -> None:
    found = ended(code)
    assert found is not None
    assert found[0] is Kind.CRASHED
