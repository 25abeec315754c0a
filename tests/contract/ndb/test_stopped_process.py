"""A process that is stopped past its lease, while another works under the lock: real processes.

this test                 a process of its own
                          with global_lock("ann"): reads
SIGSTOP ────────────────▶ (stopped; its lease runs out)
takes the lock, adds 5
SIGCONT ────────────────▶ puts its old object, with 100 more
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import add_five, stored_points
from tests.contract.ndb.models import Learner
from tests.servers import MEMCACHED_LATE_SECONDS, Memcached

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
LEASE = 1.5

_WORK = """
import sys
from google.cloud import ndb
import userlock
from tests.contract.ndb.models import Learner

url, heartbeat, lock_timeout, enforcement, fencing = sys.argv[1:]
userlock.configure(
    service=userlock.LockService.from_url(url), enforcement=enforcement, fencing=fencing == "fenced"
)
with ndb.Client().context():
    with userlock.global_lock(
        "ann", heartbeat=heartbeat == "beats", lock_timeout=float(lock_timeout)
    ) as lock:
        learner = Learner.get_by_id("ann")
        print("has read", flush=True)
        sys.stdin.readline()
        learner.points += 100
        try:
            learner.put()
        except userlock.UserLockError as error:
            print(type(error).__name__, "|", error, flush=True)
        else:
            print("accepted", flush=True)
"""


@pytest.fixture
def url(memcached: Memcached) -> str:
    return memcached.url(uuid.uuid4().hex)


@pytest.fixture(autouse=True)
def service(url: str, ndb_client: ndb.Client) -> Iterator[userlock.LockService]:
    """Provide the service on the real memcached, and ann with no points."""
    service = userlock.LockService.from_url(url)
    userlock.configure(service=service)
    with ndb_client.context():
        with userlock.global_lock("ann"):
            Learner(id="ann").put()
        yield service
    service.close()


@contextmanager
def at_work(
    url: str, *, heartbeat: bool, enforcement: str = "raise", fencing: bool = True
) -> Iterator[subprocess.Popen[str]]:
    """Provide the other process, after its read."""
    beats, fenced = "beats" if heartbeat else "-", "fenced" if fencing else "-"
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK, url, beats, str(LEASE), enforcement, fenced],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has read\n"
        yield process


def put_of(process: subprocess.Popen[str]) -> str:
    """Return the outcome of its put."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
    return process.stdout.readline()


def stopped_meanwhile(process: subprocess.Popen[str]) -> str:
    """Stop it, do its work under the lock ourselves, let it go on: what comes of its put."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    add_five()
    assert process.stdin is not None
    assert process.stdout is not None
    # Written before, so that it puts the moment it wakes up.
    process.stdin.write("go on\n")
    process.stdin.flush()
    os.kill(process.pid, signal.SIGCONT)
    return process.stdout.readline()


def test_it_detects_the_loss_before_its_next_put_is_accepted(url: str) -> None:
    with at_work(url, heartbeat=True) as process:
        answer = stopped_meanwhile(process)
    assert answer.startswith(("LeaseRanOut |", "LeaseWasLost |")), answer
    assert f"lease of {LEASE:g} s" in answer
    assert stored_points() == 5


def test_where_that_is_not_checked_the_commit_refuses_it(url: str) -> None:
    with at_work(url, heartbeat=True, enforcement="off") as process:
        answer = stopped_meanwhile(process)
    assert answer.startswith("StaleWriteError |"), answer
    assert stored_points() == 5


def test_with_neither_the_update_is_lost(url: str) -> None:
    """The negative control."""
    with at_work(url, heartbeat=True, enforcement="off", fencing=False) as process:
        assert stopped_meanwhile(process) == "accepted\n"
    assert stored_points() == 100, "the five points are gone"


def test_a_process_that_was_not_stopped_keeps_its_lock(
    url: str, service: userlock.LockService
) -> None:
    """The other negative control: its heartbeat keeps us out for longer than its lease."""
    with at_work(url, heartbeat=True) as process:
        with pytest.raises(userlock.LockTimeout):
            service.acquire("ann", wait_timeout=LEASE + MEMCACHED_LATE_SECONDS)
        assert put_of(process) == "accepted\n"
    assert stored_points() == 100
