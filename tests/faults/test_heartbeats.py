"""Heartbeats in real time, on real servers, in processes that fork, stop and die."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import userlock
from tests.faults.watching import Watched
from tests.leases import record_of
from tests.servers import MEMCACHED_LATE_SECONDS, Memcached, RedisServer
from tests.waiting import wait_until
from userlock.events import LeaseLost
from userlock.lock.record import Record
from userlock.stores.registry import open_store

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


# --- many -----------------------------------------------------------------------------------


def _hold_many(url: str, count: int, seconds: float, main: str) -> dict[str, Any]:
    """Hold each lock in a scope of its own, like that many concurrent requests."""
    watched = Watched(store=open_store(url))
    scopes = [userlock.LockScope(watched.service, userlock.Settings()) for _ in range(count)]
    tenures = [
        scope.acquire(f"learner-{number}", heartbeat=True) for number, scope in enumerate(scopes)
    ]
    before, started = _cpu_seconds(), time.monotonic()
    least = 10.0
    while (took := time.monotonic() - started) < seconds:
        _pass_time(0.25, main)
        least = min(least, *(tenure.remaining_seconds for tenure in tenures))
    store = watched.service.store
    seen = {
        "cpu": (_cpu_seconds() - before) / took,
        "threads": heart_threads(),
        "lost": sum(1 for tenure in tenures if tenure.lost or tenure.ran_out),
        "least": least,
        "held": sum(not record_of(store, tenure.lock_id).free for tenure in tenures),
    }
    for scope in scopes:
        scope.close()
    return seen


def _pass_time(seconds: float, how: str) -> None:
    """Sleep or compute. If it computes, every other thread waits for its turn after each system
    call.
    """
    if how == "sleeps":
        time.sleep(seconds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(number * number for number in range(10_000))


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


#: Far more than a process holds at once.
LEASES = 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "main"), [("memcached", "sleeps"), ("memcached", "computes"), ("redis", "computes")]
)
def test_one_thread_renews_all_leases_of_a_process(
    request: pytest.FixtureRequest, prefix: str, kind: str, main: str
) -> None:
    """For longer than the server keeps an unrenewed lease, in one thread, and in time."""
    if kind == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        url = f"{redis.url}?prefix={prefix}"
    else:
        memcached: Memcached = request.getfixturevalue("memcached")
        url = memcached.url(prefix)
    seen = in_a_process_of_its_own(_hold_many, url, LEASES, 16.0, main)
    print(
        f"\n{LEASES} leases of 10 s in {kind}, renewed for 16 s while the main thread {main}: "
        f"{seen['cpu']:.1%} of one core, never less than {seen['least']:.1f} s left"
    )
    assert seen["threads"] == ["userlock-renewal"]
    assert seen["lost"] == 0
    assert seen["held"] == LEASES


# --- forks ----------------------------------------------------------------------------------


def _life_of_a_child(tenure: userlock.HeldLock, name: str) -> list[Any]:
    """Return the child's observations after the time of two leases."""
    service = tenure.scope.service
    inherited = tenure.lease
    with userlock.scope(service) as scope:
        own = scope.acquire(name, heartbeat=True, lock_timeout=1)
        start = own.lease.deadline
        wait_until(lambda: own.lease.deadline > start + 2)
        return [
            os.getpid(),
            heart_threads(),
            tenure.lease is inherited,
            own.lost,
            len(service.renewals),
        ]


def _parent(address: str, prefix: str, how: str) -> dict[str, Any]:
    """Act like a gunicorn that loads the app, and locks, before it forks its workers."""
    watched = Watched(address, prefix=prefix)
    look = Watched(address, prefix=prefix).service.store
    with userlock.scope(watched.service) as scope:
        tenure = scope.acquire("parents", heartbeat=True, lock_timeout=1)
        token = tenure.lease.token
        wait_until(lambda: tenure.remaining_seconds < 0.7)
        wait_until(lambda: tenure.remaining_seconds > 0.9)  # the renewal thread works
        fork = multiprocessing.get_context("fork")
        said: list[Any] = []
        children: list[Any] = []
        pipes = []
        for number in range(3):
            read, write = multiprocessing.Pipe(duplex=False)
            arguments = (tenure, f"child-{number}")
            if how == "os.fork":
                child = os.fork()
                if child == 0:
                    try:
                        write.send(_life_of_a_child(*arguments))
                    finally:
                        os._exit(0)
                children.append(child)
            else:
                process = fork.Process(target=_send, args=(write, _life_of_a_child, *arguments))
                process.start()
                children.append(process)
            pipes.append(read)
        said = [pipe.recv() for pipe in pipes]
        for child in children:
            if how == "os.fork":
                os.waitpid(child, 0)
            else:
                child.join()
        stored = look.read("parents")
        return {
            "said": said,
            "own": [os.getpid(), heart_threads(), tenure.lost, len(watched.service.renewals)],
            "held": stored is not None
            and Record(stored).holder.token == token
            and not Record(stored).free,
            "events": [event for event in watched.events if isinstance(event, LeaseLost)],
        }


@pytest.mark.slow
@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
def test_after_a_fork_each_process_renews_its_own(
    memcached: Memcached, prefix: str, how: str
) -> None:
    seen = in_a_process_of_its_own(_parent, memcached.address, prefix, how)
    pid, threads, lost, wards = seen["own"]
    assert (threads, lost, wards) == (["userlock-renewal"], "", 1)
    assert seen["held"]
    assert seen["events"] == []
    assert len({said[0] for said in seen["said"]} | {pid}) == 4
    for _, threads, untouched, lost, wards in seen["said"]:
        assert threads == ["userlock-renewal"]
        assert untouched, "the child has renewed its parent's lease"
        assert lost == ""
        assert wards == 1
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
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_dies_frees_its_lock_with_the_lease(
    memcached: Memcached, prefix: str, death: signal.Signals
) -> None:
    """It is first held for longer than its lease, so that only the death can be the reason."""
    url = memcached.url(prefix)
    with a_holder(url, "beats") as process:
        service = userlock.LockService.from_url(url)
        with pytest.raises(userlock.LockTimeout):
            service.acquire("learner-1", wait_timeout=OVER_SECONDS)
        process.send_signal(death)
        process.wait()
    died = time.monotonic()
    lease = service.acquire("learner-1", wait_timeout=20)
    took = time.monotonic() - died
    service.release(lease)
    print(f"\nlease of 2 s, {death.name}: free {took:.2f} s after the death")
    assert took <= OVER_SECONDS


@pytest.mark.slow
def test_without_a_heartbeat_a_living_process_loses_it(memcached: Memcached, prefix: str) -> None:
    """The negative control."""
    url = memcached.url(prefix)
    with a_holder(url, "does not"):
        service = userlock.LockService.from_url(url)
        service.release(service.acquire("learner-1", wait_timeout=OVER_SECONDS))
