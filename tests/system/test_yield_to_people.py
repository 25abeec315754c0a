"""A batch job and people on one lock: real processes, over the real memcached."""

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
#: Of an interactive request that is first in line, in seconds.
ONE_POLL = 0.025
#: What two busy cores may add.
SCHEDULING = 0.1


def batch_among_people(url: str, how: str) -> tuple[dict[str, Any], list[float]]:
    """What the batch says of its work, and how long people waited for the lock."""
    service = userlock.LockService.from_url(url)
    with rivals(url, "batch", "ann", "ann-too") as (batch, *people):
        assert batch.ask("take", "ann", 5)["got"] == "ann"
        batch.tell(how, STEP_SECONDS, STEPS)
        batch.tell("release")
        for person in people:
            person.tell("visit", "ann", VISITS)
        report = batch.answer()
        assert batch.answer() == {"released": True}
        answers = [person.answer() for person in people]
    assert [answer["errors"] for answer in answers] == [0] * len(people)
    assert service.holder("ann") is None
    return report, [wait for answer in answers for wait in answer["waits"]]


@pytest.fixture
def url(memcached: Memcached) -> str:
    return memcached.url(uuid.uuid4().hex)


def test_nobody_waits_longer_than_one_step(url: str) -> None:
    report, waits = batch_among_people(url, "work")
    print(
        f"\na batch of {STEPS} steps of {STEP_SECONDS * 1000:.0f} ms among people: let "
        f"{report['passed']} pass, longest step {report['longest_step'] * 1000:.0f} ms; of "
        f"{len(waits)} visits the longest wait was {max(waits) * 1000:.0f} ms"
    )
    assert report["passed"] >= 5, "they have met"
    assert max(waits) <= report["longest_step"] + ONE_POLL + SCHEDULING


def test_without_the_checkpoint_people_wait_for_all_of_it(url: str) -> None:
    """The negative control."""
    began = time.monotonic()
    report, waits = batch_among_people(url, "stubborn")
    print(
        f"\nwithout the checkpoint: of {len(waits)} visits the longest wait was "
        f"{max(waits) * 1000:.0f} ms, in {time.monotonic() - began:.1f} s"
    )
    assert report["passed"] == 0
    assert max(waits) > STEP_SECONDS * STEPS / 2
