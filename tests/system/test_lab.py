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


pytestmark = pytest.mark.slow


def test_only_without_protection_updates_are_lost(documents: dict[str, dict[str, Any]]) -> None:
    runs = {between: each["outcome"] for between, each in documents.items()}
    assert runs["none"]["accepted"] == CLIENTS * EACH
    assert runs["none"]["lost"] > 0
    for between in ("transaction", "lock", "lock-outage"):
        found = runs[between]
        assert found["lost"] == 0, between
        assert found["accepted"] + found["refused"] == CLIENTS * EACH, between
    assert runs["transaction"]["retries"] > 0, "it runs again"
    assert (runs["lock"]["accepted"], runs["lock"]["retries"]) == (CLIENTS * EACH, 0), "once"
    assert runs["lock"]["wait_longest"] > 10
    assert runs["lock-outage"]["degraded"] > 0, "memcached was never down"


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
