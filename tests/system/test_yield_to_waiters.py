"""A batch job and interactive requests on one lock: real processes, with the real memcached."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

import userlock
from tests.servers import Memcached
from tests.system.processes import rivals

pytestmark = pytest.mark.slow

STEP_SECONDS = 0.04
STEPS = 40
VISITS = 12
#: The poll interval of the first interactive waiter, in seconds.
ONE_POLL = 0.025
#: The margin for two busy cores.
SCHEDULING = 0.1


def batch_with_interactive(url: str, how: str) -> tuple[dict[str, Any], list[float]]:
    """Return the batch job's report, and the waits of interactive requests."""
    service = userlock.LockService.from_url(url)
    with rivals(url, "batch", "ann", "ann-too") as (batch, *others):
        assert batch.ask("take", "ann", 5)["got"] == "ann"
        batch.tell(how, STEP_SECONDS, STEPS)
        batch.tell("release")
        for other in others:
            other.tell("visit", "ann", VISITS)
        report = batch.answer()
        assert batch.answer() == {"released": True}
        answers = [other.answer() for other in others]
    assert [answer["errors"] for answer in answers] == [0] * len(others)
    assert service.holder("ann") is None
    return report, [wait for answer in answers for wait in answer["waits"]]


@pytest.fixture
def url(memcached: Memcached) -> str:
    return memcached.url(uuid.uuid4().hex)


def test_no_request_waits_longer_than_one_step(url: str) -> None:
    report, waits = batch_with_interactive(url, "work")
    print(
        f"\na batch of {STEPS} steps of {STEP_SECONDS * 1000:.0f} ms under contention: let "
        f"{report['passed']} pass, longest step {report['longest_step'] * 1000:.0f} ms; of "
        f"{len(waits)} visits the longest wait was {max(waits) * 1000:.0f} ms"
    )
    assert report["passed"] >= 5, "they have contended"
    assert max(waits) <= report["longest_step"] + ONE_POLL + SCHEDULING


def test_without_the_checkpoint_requests_wait_for_the_whole_job(url: str) -> None:
    """The negative control."""
    began = time.monotonic()
    report, waits = batch_with_interactive(url, "stubborn")
    print(
        f"\nwithout the checkpoint: of {len(waits)} visits the longest wait was "
        f"{max(waits) * 1000:.0f} ms, in {time.monotonic() - began:.1f} s"
    )
    assert report["passed"] == 0
    assert max(waits) > STEP_SECONDS * STEPS / 2
