"""The model's table names existing steps and functions, and its checker's output is parsed."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

from spec.__main__ import understand
from spec.checks import CHECKS, LONG_CHECKS, Check

SPEC = Path(__file__).parents[3] / "spec"
ROWS = re.findall(r"^\| (`.*?) \| (`userlock.*) \|$", (SPEC / "README.md").read_text(), re.M)
MODELS = "\n".join(path.read_text() for path in SPEC.glob("*.pml"))
SWITCHES = {
    name
    for line in re.findall(r"^#(?:if|elif)(?:n?def\b| ).*", MODELS, re.M)
    for name in re.findall(r"[A-Z][A-Z_0-9]+", line.partition("/*")[0])
}
#: Numbers whose default serves all runs.
SIZES = {"DEATHS", "TIMEOUTS", "MAY_BE_REFUSED", "REDRIVES"}


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
        assert option[2:].partition("=")[0] in SWITCHES, option


def test_each_switch_of_the_models_is_used_by_a_run() -> None:
    """A protection whose omission nobody tries may protect nothing."""
    used = {
        option[2:].partition("=")[0]
        for check in (*CHECKS, *LONG_CHECKS)
        for option in check.options
    }
    assert {name for name in SWITCHES if name not in used} <= SIZES


@pytest.mark.parametrize("check", [*CHECKS, *LONG_CHECKS], ids=lambda check: check.says)
def test_a_formula_is_one_of_its_model(check: Check) -> None:
    found = re.findall(r"^ltl (\w+)", (SPEC / check.model).read_text(), re.M)
    assert not check.claim or check.claim in found


def test_no_two_runs_have_the_same_name() -> None:
    names = [check.says for check in (*CHECKS, *LONG_CHECKS)]
    assert len(set(names)) == len(names)


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
