"""The checker of processes' resources."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.findings import Kind
from tests.chaos.verdict import leaks


def gauge(when: str, **facts: int) -> dict[str, Any]:
    return {
        "who": "p",
        "when": when,
        "at": 1.0,
        "threads": 2,
        "files": 10,
        "connections": 0,
        "resident": 100 << 20,
        "objects": 100_000,
    } | facts


def test_released_resources_are_no_leak() -> None:
    used = [gauge("before"), gauge("warm", connections=20, threads=9, files=40), gauge("after")]
    assert list(leaks(used)) == []


@pytest.mark.parametrize(
    ("when", "facts"),
    [
        ("meanwhile", {"connections": 100}),
        ("after", {"connections": 1}),
        ("after", {"threads": 3}),
        ("after", {"files": 15}),
        ("after", {"resident": 200 << 20}),
        ("after", {"objects": 200_000}),
    ],
)
def test_kept_resources_are_a_leak(when: str, facts: dict[str, int]) -> None:
    (finding,) = leaks([gauge("warm"), gauge(when, **facts)])
    assert (finding.kind, finding.about) == (Kind.LEAK, "p")


def test_each_process_grows_by_itself() -> None:
    large = gauge("after", objects=200_000) | {"who": "q"}
    assert list(leaks([gauge("warm"), large])) == []
