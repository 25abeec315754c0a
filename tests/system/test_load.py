"""Half a minute of `make load`, with its negative control."""

from __future__ import annotations

from pathlib import Path

import pytest

from sample_app.config import Protection
from sample_app.stack import Stack
from tests.servers import real
from tools.load.run import Outcome, run

pytestmark = pytest.mark.slow

SECONDS = 15


def load(
    tmp_path: Path,
    *,
    protection: Protection = Protection.LOCK,
    think_ms: int = 0,
    seconds: int = SECONDS,
) -> Outcome:
    with Stack(
        protection=protection,
        think_ms=think_ms,
        threads=12,
        log_dir=tmp_path,
        memcached_binary=real("memcached", "memcached"),
    ) as stack:
        outcome = run(stack, seconds)
    print(
        f"\n{outcome.answers} responses in {outcome.seconds} s, "
        f"{outcome.leak_bytes:,.0f} bytes left behind by each"
    )
    return outcome


def test_no_wrong_answer_nothing_lost_no_leak(tmp_path: Path) -> None:
    # Longer than the others: with few requests, caches that fill look like a small leak.
    outcome = load(tmp_path, seconds=2 * SECONDS)
    assert outcome.faults == []
    assert outcome.answers > 300, "hardly any traffic: this run proves nothing"
    assert len(outcome.accepted) == 4, "programs and coaches, each with accepted updates"


def test_without_protection_accepted_updates_are_missing(tmp_path: Path) -> None:
    """The negative control."""
    outcome = load(tmp_path, protection=Protection.NONE, think_ms=5)
    assert any("were accepted" in fault for fault in outcome.faults)
