"""The model's table names existing steps and functions, and its checker's output is parsed."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

from spec.__main__ import understand
from spec.checks import CHECKS, LONG_CHECKS

SPEC = Path(__file__).parents[2] / "spec"
ROWS = re.findall(r"^\| (`.*?) \| (`userlock.*) \|$", (SPEC / "README.md").read_text(), re.M)
MODELS = "\n".join(path.read_text() for path in SPEC.glob("*.pml"))


def test_there_is_a_table() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize(("steps", "code"), ROWS)
def test_steps_and_functions_exist(steps: str, code: str) -> None:
    for step in re.findall(r"`(\w+)`", steps):
        pattern = rf"^{step}:|inline {step}\(|#define {step}\(|proctype {step}\("
        assert re.search(pattern, MODELS, re.M), step
    for module, name in re.findall(r"`(userlock[\w.]*):([\w.]+)`", code):
        assert functools.reduce(getattr, name.split("."), importlib.import_module(module))


@pytest.mark.parametrize("check", [*CHECKS, *LONG_CHECKS], ids=lambda check: check.says)
def test_options_mean_something_in_the_models(check: object) -> None:
    for option in getattr(check, "options", ()):
        assert re.search(rf"#if(n?def) {option[2:].partition('=')[0]}\b", MODELS), option


_HEAD = "State-vector 92 byte, depth reached 204, errors: {}\n  1128192 states, stored\n"


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (_HEAD.format(0), "holds"),
        (_HEAD.format(1), "fails"),
        ("Warning: Search not completed\n" + _HEAD.format(0), "not finished"),
        ("error: max search depth too small\n" + _HEAD.format(0), "not finished"),
        ("", "not finished"),
    ],
)
def test_the_verdict_of_an_output(said: str, verdict: str) -> None:
    assert understand(said, 1.0).verdict == verdict
