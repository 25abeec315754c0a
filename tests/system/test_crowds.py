"""A crowd of processes at one lock: its order, and the delay when some are killed.

The claimed figures: a waiter that dies, anywhere in the queue, alone or with a whole process of
them, delays the others by half a second at most.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
from pymemcache.client.base import Client

from tests.history import Attempt
from tests.servers import Memcached
from tests.system.crowd import Crowd, Member, gaps, gathered, without_the_killed

pytestmark = pytest.mark.slow


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


CLAIMED_SECONDS = 0.5
#: The hand-offs themselves, on a busy machine, per served attempt.
SLACK_SECONDS = 0.06


def _served(crowd: Crowd, killed: list[Member], *, each: int = 1) -> tuple[list[Attempt], float]:
    """Queue all, kill some, release the lock; return the served attempts, and the total delay."""
    lease = crowd.service.acquire(crowd.lock_id)
    for member in crowd.members:
        crowd.enqueue(member, each=each if member.name == "many" else 1)
    for member in killed:
        member.kill()
    released = time.monotonic()
    crowd.service.release(lease)
    attempts = without_the_killed(crowd.finish(), *killed)
    return attempts, sum(gaps(attempts, released))


@pytest.mark.parametrize("position", [0, 2], ids=["first", "middle"])
def test_a_waiter_that_is_killed(
    memcached: Memcached, tmp_path: Path, position: int, prefix: str
) -> None:
    with gathered(memcached.url(prefix), tmp_path) as crowd:
        names = [f"waiter-{number}" for number in range(5)]
        killed = crowd.enlist(*names, holds=0.02)[position]
        attempts, delay = _served(crowd, [killed])
    assert [a.who.partition("/")[0] for a in attempts] == [n for n in names if n != killed.name]
    print(f"\nnumber {position} of 5 killed: the lock was free for {delay:.3f} s in all")
    assert delay <= CLAIMED_SECONDS + len(attempts) * SLACK_SECONDS


def test_a_process_with_25_waiting_threads_that_is_killed(
    memcached: Memcached, tmp_path: Path, prefix: str
) -> None:
    with gathered(memcached.url(prefix), tmp_path) as crowd:
        crowd.enlist("early", holds=0.02)
        (many,) = crowd.enlist("many", threads=25, holds=0.02)
        crowd.enlist("late-0", "late-1", holds=0.02)
        attempts, delay = _served(crowd, [many], each=25)
    assert [a.who for a in attempts] == ["early/0", "late-0/0", "late-1/0"]
    print(f"\n25 threads killed: the lock was free for {delay:.3f} s in all")
    assert delay <= CLAIMED_SECONDS + len(attempts) * SLACK_SECONDS


# --- a hundred waiters ---------------------------------------------------------------------------


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


def test_a_hundred_waiters(own_memcached: Memcached, tmp_path: Path) -> None:
    """All are served, in the order of the queue, with a bounded load on the server."""
    server = Client(("127.0.0.1", own_memcached.port), timeout=2)
    with gathered(own_memcached.url(), tmp_path) as crowd:
        rate, each = _wait_of(crowd, 12, server)
    server.close()
    # Each polls four times a second at most, except the first two.
    assert rate <= 6 * 96 + 60
    assert each <= 80
