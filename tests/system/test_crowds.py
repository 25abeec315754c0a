"""Real processes at one lock of a real memcached: fair, in order, with a bounded number of
commands.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client

from tests.history import check
from tests.servers import Memcached
from tests.system.crowd import Crowd, gathered

pytestmark = pytest.mark.slow

#: A command to memcached, an end of a wait, and the scheduling of a busy machine.
STORE_SECONDS = 0.5 + 0.5


def test_interactive_and_batch_in_eight_processes(own_memcached: Memcached, tmp_path: Path) -> None:
    with gathered(own_memcached.url(), tmp_path) as crowd:
        options: dict[str, Any] = {
            "attempts": None,
            "seconds": 8,
            "thinks": 0.2,
            "holds": 0.008,
            "wait_timeout": 10,
        }
        crowd.enlist(*(f"interactive-{n}" for n in range(5)), threads=2, **options)
        crowd.enlist("mixed", threads=3, batch=1, **options)
        crowd.enlist("batch-0", "batch-1", batch=1, **options)
        for member in crowd.members:
            member.go()
        attempts = crowd.finish()
    waited = sorted(a.waited for a in attempts if a.queued is not None)
    paused = sum(a.excused for a in attempts)
    batch = sum(a.batch and a.granted is not None for a in attempts)
    print(
        f"\n{len(attempts)} attempts, {len(waited)} were queued, the longest wait "
        f"{waited[-1]:.3f} s; {batch} of batch; {paused} paused by the machine"
    )
    check(attempts, store_seconds=STORE_SECONDS, ages_after=30)
    assert len(waited) > 150
    assert batch > 10
    assert paused <= len(attempts) / 50, "the machine is too busy to tell"


def _commands(server: Client) -> int:
    stats = server.stats()
    return sum(int(stats[name]) for name in (b"cmd_get", b"cmd_set", b"delete_hits"))


def _wait_of(crowd: Crowd, threads_each: int, server: Client) -> tuple[float, float]:
    """Let eight processes wait. Return their commands per second, and the time until all are
    served.
    """
    lease = crowd.service.acquire(crowd.lock_id, lock_timeout=120)
    members = crowd.enlist(
        *(f"with-{threads_each}-{n}" for n in range(8)), threads=threads_each, wait_timeout=60
    )
    for member in members:
        member.go()
    crowd.until(lambda: len(crowd.service.waiters(crowd.lock_id)) == 8 * threads_each)
    before, since = _commands(server), time.monotonic()
    time.sleep(1.5)
    rate = (_commands(server) - before) / (time.monotonic() - since)
    queue = [waiter.request for waiter in crowd.service.waiters(crowd.lock_id)]
    before, since = _commands(server), time.monotonic()
    crowd.service.release(lease)
    attempts = [a for a in crowd.finish() if a.who.startswith(f"with-{threads_each}-")]
    seconds = time.monotonic() - since
    served = (_commands(server) - before) / len(attempts)
    assert len(attempts) == 8 * threads_each
    assert all(attempt.granted is not None for attempt in attempts), "a waiter was not served"
    excused = {attempt.who for attempt in attempts if attempt.excused}
    assert [a.who for a in attempts if a.who not in excused] == [
        who for who in queue if who not in excused
    ], "not in the order of the queue"
    print(
        f"\n{8 * threads_each} waiters: {rate:.0f} commands per second while waiting; "
        f"served in {seconds:.2f} s with {served:.1f} commands each; {len(excused)} paused"
    )
    return rate, served


def test_two_hundred_waiters(own_memcached: Memcached, tmp_path: Path) -> None:
    """All are served, in the order of the queue, with a bounded load on the server."""
    server = Client(("127.0.0.1", own_memcached.port), timeout=2)
    figures = {}
    with gathered(own_memcached.url(), tmp_path) as crowd:
        for threads_each in (6, 12, 25):
            figures[8 * threads_each] = _wait_of(crowd, threads_each, server)
    server.close()
    print({waiters: f"{rate:.0f}/s, {each:.1f} each" for waiters, (rate, each) in figures.items()})
    for waiters, (rate, each) in figures.items():
        # Each polls four times a second at most, except the first two.
        assert rate <= 6 * waiters + 60
        assert each <= 80
