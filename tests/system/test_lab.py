"""The contention lab in a terminal shows the intended effects."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sample_app.config import Protection
from tests.system.conftest import StartStack
from tests.system.load import call
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
CLIENTS, EACH = 6, 8


def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sample_app", "lab", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("timelines")
    done = lab(
        *("--json", "--svg", str(folder), "--mode", "optimistic", "--hold-ms", "10"),
        *("--clients", str(CLIENTS), "--requests", str(EACH)),
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {file.name for file in folder.iterdir()} == {
        f"{between}-optimistic.svg" for between in ("none", "transaction", "lock", "lock-outage")
    }
    return {each["plan"]["between"]: each["outcome"] for each in found}


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


@pytest.mark.parametrize(("between", "loses"), [("none", True), ("lock", False)])
def test_from_the_page(start_stack: StartStack, between: str, loses: bool) -> None:
    stack = start_stack(Protection.LOCK)
    form = f"between={between}&clients={CLIENTS}&requests={EACH}&hold_ms=10"
    request = urllib.request.Request(f"{stack.app_url}/lab/runs", form.encode())  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as page:  # noqa: S310
        where = page.url
    progress: dict[str, Any] = {}

    def over() -> object:
        progress.update(
            call(stack.app_url, "GET", f"{where.removeprefix(stack.app_url)}.json").body
        )
        return progress["over"]

    wait_until(over, seconds=60)
    assert progress["trouble"] == ""
    assert progress["outcome"]["accepted"] == CLIENTS * EACH
    assert (progress["outcome"]["lost"] > 0) is loses
    with urllib.request.urlopen(where, timeout=30) as page:  # noqa: S310
        assert b"<svg" in page.read()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--between", "luck"), "between is 'luck'"),
        (("--clients", "0"), "clients is 0"),
        (("--svg", "/nowhere/at/all"), "there is no folder"),
    ],
)
def test_invalid_options_are_reported_at_once(arguments: tuple[str, ...], message: str) -> None:
    done = lab(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
