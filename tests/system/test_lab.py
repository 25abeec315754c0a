"""The contention lab in a terminal shows the intended effects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sample_app.lab.crashes.outcome import Order, wrong
from sample_app.lab.plan import Between, Scenario

ROOT = Path(__file__).parents[2]
CLIENTS, EACH = 6, 8


def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sample_app", "lab", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("timelines")
    done = lab(
        *("--json", "--svg", str(folder), "--picture", str(folder)),
        *("--mode", "optimistic", "--hold-ms", "10"),
        *("--clients", str(CLIENTS), "--requests", str(EACH)),
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {file.name for file in folder.iterdir()} == {
        "lab-dark.svg",
        "lab-light.svg",
        *(f"{between}-optimistic.svg" for between in Between),
    }
    for file in folder.iterdir():
        ElementTree.parse(file)  # noqa: S314 (our own)
    light, dark = ((folder / f"lab-{scheme}.svg").read_text() for scheme in ("light", "dark"))
    assert light.count("updates lost</text>") == dark.count("updates lost</text>") == 4
    return {each["plan"]["between"]: each for each in found}


@pytest.fixture
def runs(documents: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {between: each["outcome"] for between, each in documents.items()}


pytestmark = pytest.mark.slow


def test_without_protection_updates_are_lost(runs: dict[str, dict[str, Any]]) -> None:
    found = runs["none"]
    assert found["accepted"] == CLIENTS * EACH
    assert found["lost"] > 0


def test_a_transaction_loses_none_and_runs_again(runs: dict[str, dict[str, Any]]) -> None:
    found = runs["transaction"]
    assert found["lost"] == 0
    assert found["retries"] > 0
    assert found["accepted"] + found["refused"] == CLIENTS * EACH


def test_the_lock_loses_none_and_runs_once(runs: dict[str, dict[str, Any]]) -> None:
    found = runs["lock"]
    assert (found["accepted"], found["lost"], found["retries"]) == (CLIENTS * EACH, 0, 0)
    assert found["wait_longest"] > 10


def test_without_memcached_nothing_that_was_accepted_is_lost(
    runs: dict[str, dict[str, Any]],
) -> None:
    found = runs["lock-outage"]
    assert found["degraded"] > 0, "memcached was never down"
    assert found["lost"] == 0
    assert found["accepted"] + found["refused"] == CLIENTS * EACH


@pytest.mark.parametrize("scenario", Scenario)
def test_orders_whose_workers_are_killed(scenario: Scenario) -> None:
    """Without the library, each killed worker leaves a wrong order: the control."""
    done = lab(
        *("--scenario", scenario, "--orders", "6", "--clients", "2", "--kill-percent", "34"),
        "--json",
    )
    assert (done.returncode, done.stderr) == (0, "")
    without, protected = json.loads(done.stdout)["outcome"].values()
    for measured in (without, protected):
        assert (measured["killed"], measured["confirmed"], measured["stored"]) == (2, 6, 6)
    assert wrong(without) >= 2
    assert all(Order(**each).wrong for each in without["each"] if each["killed"])
    assert wrong(protected) == 0
    assert protected["effects"] == 6
