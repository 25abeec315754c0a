"""Half a minute of `make load`, with its negative control."""

from __future__ import annotations

import pytest

from sample_app.config import Protection
from sample_app.stack import Stack
from tests.system.conftest import StartStack
from tools.load.run import Outcome, run

pytestmark = pytest.mark.slow

SECONDS = 15


def load(stack: Stack, seconds: int = SECONDS) -> Outcome:
    outcome = run(stack, seconds)
    print(
        f"\n{outcome.answers} responses in {outcome.seconds} s, "
        f"{outcome.leak_bytes:,.0f} bytes left behind by each"
    )
    return outcome


def test_no_wrong_answer_nothing_lost_no_leak(start_stack: StartStack) -> None:
    # Longer than the others: with few requests, caches that fill look like a small leak.
    outcome = load(start_stack(), 2 * SECONDS)
    assert outcome.faults == []
    assert outcome.answers > 300, "hardly any traffic: this run proves nothing"
    assert len(outcome.accepted) == 4, "programs and coaches, each with accepted updates"


def test_without_protection_accepted_updates_are_missing(start_stack: StartStack) -> None:
    """The negative control."""
    outcome = load(start_stack(protection=Protection.NONE, think_ms=5))
    assert any("were accepted" in fault for fault in outcome.faults)
