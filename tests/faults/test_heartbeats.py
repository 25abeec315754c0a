"""Heartbeats in real time, on real servers, in processes that fork, stop and die."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import userlock
from tests.faults.watching import Watched
from tests.leases import record_of
from tests.servers import MEMCACHED_LATE_SECONDS, Memcached
from tests.waiting import wait_until
from userlock.events import LeaseLost

ROOT = Path(__file__).resolve().parents[2]


def heart_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("userlock")]


def in_a_process_of_its_own(target: Callable[..., Any], *args: object) -> Any:
    """Return the result of `target` in a new interpreter."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_send, args=(theirs, target, *args))
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    finally:
        process.join()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _send(pipe: Connection, target: Callable[..., Any], *args: object) -> None:
    try:
        pipe.send(target(*args))
    except BaseException as error:
        pipe.send(error)


# --- forks ----------------------------------------------------------------------------------


def _life_of_a_child(tenure: userlock.HeldLock, name: str) -> list[Any]:
    """Return the child's observations after the time of two leases."""
    inherited = tenure._lease
    with userlock.scope(tenure._scope.service) as scope:
        own = scope.acquire(name, heartbeat=True, lock_timeout=1)
        start = own._lease.deadline
        wait_until(lambda: own._lease.deadline > start + 2)
        return [os.getpid(), heart_threads(), tenure._lease is inherited, own.lost]


def _parent(address: str, prefix: str) -> dict[str, Any]:
    """Act like a gunicorn that loads the app, and locks, before it forks its workers."""
    watched = Watched(address, prefix=prefix)
    look = Watched(address, prefix=prefix).service.store
    with userlock.scope(watched.service) as scope:
        tenure = scope.acquire("parents", heartbeat=True, lock_timeout=1)
        token, first = tenure._lease.token, tenure._lease.deadline
        wait_until(lambda: tenure._lease.deadline > first)  # the renewal thread works
        children, pipes = [], []
        for number in range(3):
            read, write = multiprocessing.Pipe(duplex=False)
            child = os.fork()
            if child == 0:
                try:
                    write.send(_life_of_a_child(tenure, f"child-{number}"))
                finally:
                    os._exit(0)
            children.append(child)
            pipes.append(read)
        said = [pipe.recv() for pipe in pipes]
        for child in children:
            os.waitpid(child, 0)
        record = record_of(look, "parents")
        return {
            "said": said,
            "own": [os.getpid(), heart_threads(), tenure.lost],
            "held": record.holder.token == token and not record.free,
            "events": watched.of(LeaseLost),
        }


@pytest.mark.slow
def test_after_a_fork_each_process_renews_its_own(memcached: Memcached, prefix: str) -> None:
    seen = in_a_process_of_its_own(_parent, memcached.address, prefix)
    pid, threads, lost = seen["own"]
    assert (threads, lost) == (["userlock-renewal"], "")
    assert seen["held"]
    assert seen["events"] == []
    assert len({said[0] for said in seen["said"]} | {pid}) == 4
    for _, threads, untouched, lost in seen["said"]:
        assert threads == ["userlock-renewal"]
        assert untouched, "the child has renewed its parent's lease"
        assert lost == ""
    watched = Watched(memcached.address, prefix=prefix)
    assert [watched.service.holder(f"child-{number}") for number in range(3)] == [None] * 3


# --- deaths ---------------------------------------------------------------------------------

_HOLD = """
import sys, threading
import userlock
service = userlock.LockService.from_url(sys.argv[1])
with userlock.scope(service) as scope:
    tenure = scope.acquire("learner-1", heartbeat=sys.argv[2] == "beats", lock_timeout=2)
    print("held", flush=True)
    threading.Event().wait()
"""
#: The end of an unrenewed lease, in seconds.
OVER_SECONDS = 2 + MEMCACHED_LATE_SECONDS


@contextmanager
def a_holder(url: str, how: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that holds the lock until it is killed, with a heartbeat if it "beats"."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, url, how], stdout=subprocess.PIPE, cwd=ROOT
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()  # it would never end


@pytest.mark.slow
def test_a_process_that_dies_frees_its_lock_with_the_lease(
    memcached: Memcached, prefix: str
) -> None:
    """It is first held for longer than its lease, so that only the death can be the reason."""
    url = memcached.url(prefix)
    with a_holder(url, "beats") as process:
        service = userlock.LockService.from_url(url)
        with pytest.raises(userlock.LockTimeout):
            service.acquire("learner-1", wait_timeout=OVER_SECONDS)
        process.kill()
        process.wait()
    service.release(service.acquire("learner-1", wait_timeout=20))


@pytest.mark.slow
def test_without_a_heartbeat_a_living_process_loses_it(memcached: Memcached, prefix: str) -> None:
    """The negative control."""
    url = memcached.url(prefix)
    with a_holder(url, "does not"):
        service = userlock.LockService.from_url(url)
        service.release(service.acquire("learner-1", wait_timeout=OVER_SECONDS))
