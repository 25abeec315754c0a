"""Random programs in four processes: what was accepted is there in the end, what was refused not.

    make test-random SECONDS_RANDOM=300 SEED=7

The programs and the faults come of the seed; how they interleave is up to the machine.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.servers import Memcached
from tests.trial.checker import Kind
from tests.trial.processes import run
from tests.trial.record import Outcome

pytestmark = pytest.mark.slow

#: For both concurrency modes together.
SECONDS = float(os.environ.get("SECONDS_RANDOM", "60"))
SEED = int(os.environ.get("SEED") or random.randrange(10**6))
#: On a machine that is so busy that hardly two processes run at once, one run may lose nothing.
_TIMES = 5


@pytest.mark.parametrize("concurrency_mode", ["optimistic", "pessimistic"])
def test_nothing_is_lost(own_memcached: Memcached, tmp_path: Path, concurrency_mode: str) -> None:
    result = run(
        own_memcached,
        tmp_path,
        seed=SEED,
        seconds=SECONDS / 2,
        concurrency_mode=concurrency_mode,
        kills=concurrency_mode == "optimistic",
    )
    print(f"\n{concurrency_mode}, SEED={SEED}\n{result}")
    assert result.findings == [], f"SEED={SEED}\n{result}"
    # It has had something to tell apart.
    assert result.told(Outcome.ACCEPTED) > 5 * SECONDS
    assert result.told(Outcome.REFUSED) > SECONDS / 2
    assert 0 < result.told(Outcome.UNKNOWN) < len(result.writes) / 10


def test_without_fencing_updates_are_lost(own_memcached: Memcached, tmp_path: Path) -> None:
    """The negative control: the same programs, a few seconds at a time."""
    lost = 0
    for _ in range(_TIMES):
        result = run(own_memcached, tmp_path, seed=SEED, seconds=6, fencing=False)
        print(f"\nwithout fencing, SEED={SEED}\n{result}")
        lost += len(result.found(Kind.LOST))
        if lost:
            break
    assert lost > 0, f"SEED={SEED}: nothing was lost in {_TIMES} runs"
