"""One user's requests do not take all threads of a server: gunicorn and memcached, both real."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import userlock
from sample_app.stack import ports
from sample_app.stack.children import Child
from tests.servers import Memcached
from tests.waiting import assert_within, wait_until
from userlock.contrib.request_scope import MAX_WAITING

ROOT = Path(__file__).parents[2]
CROWD = 30
#: Another user's request, while those of one user wait.
MOST_SECONDS = 0.5


def recommended() -> tuple[int, str]:
    """Return the threads of a worker, and `max_waiting`, as the deploy page says them."""
    page = (ROOT / "docs/deploy.md").read_text()
    (threads,) = set(re.findall(r"`--workers 2 --threads (\d+)", page))
    (waiting,) = set(re.findall(r"`max_waiting=(\d+)`", page))
    return int(threads), waiting


class Request:
    """A request that has been sent.

    The connection is kept alive: gunicorn's only loop would wait for a client to close one that is
    not.
    """

    def __init__(self, port: int, path: str, header: str = "") -> None:
        self._socket = socket.create_connection((ports.LOOPBACK, port), timeout=20)
        self._sent_at = time.monotonic()
        self._socket.sendall(
            f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n{header}\r\n".encode()
        )

    def fileno(self) -> int:
        return self._socket.fileno()

    def status(self, within: float = 20) -> int:
        """Wait for the answer; return its status. `TimeoutError`: it does not come in time."""
        self._socket.settimeout(within)
        with self._socket:
            return int(self._socket.recv(4096).split()[1])

    def seconds(self) -> float:
        """Wait for the answer; return the seconds since the request."""
        assert self.status() == 200
        return time.monotonic() - self._sent_at


def answered(requests: list[Request]) -> int:
    """Return the number of requests that have an answer."""
    return len(select.select(requests, [], [], 0)[0])


@contextlib.contextmanager
def site(tmp_path: Path, store: str, max_waiting: str, threads: int) -> Iterator[int]:
    """Run one worker; return its port."""
    port = ports.any_free()
    child = Child(
        "site",
        [
            *(sys.executable, "-m", "gunicorn", "--no-control-socket", "--timeout", "0"),
            *("--workers", "1", "--threads", str(threads), "--bind", f"{ports.LOOPBACK}:{port}"),
            "tests.system.one_user_site:app",
        ],
        answers=lambda: not ports.is_free(port),
        log_file=tmp_path / "site.log",
        env={**os.environ, "USERLOCK_STORE": store, "MAX_WAITING": max_waiting},
        cwd=ROOT,
    )
    child.start()
    try:
        child.wait_until_it_answers()
        assert Request(port, "/users/nobody").status() == 200  # it has loaded the app
        yield port
    finally:
        child.stop(grace_seconds=0)


@pytest.mark.parametrize("header", ["", "X-CloudTasks-QueueName: forged\r\n"])
def test_a_request_of_another_user_is_served_at_once(
    tmp_path: Path, memcached: Memcached, header: str
) -> None:
    """With the settings that the deploy page recommends, and the default."""
    store = memcached.url(f"one-user-{len(header)}")
    threads, waiting = recommended()
    assert int(waiting) == MAX_WAITING, "the recommended setting is the default"
    service = userlock.LockService.from_url(store)
    with site(tmp_path, store, "", threads) as port:

        def another_user() -> float:
            lease = service.acquire("ann")
            crowd = [Request(port, "/users/ann", header) for _ in range(CROWD)]
            seconds = Request(port, "/users/bob").seconds()
            served = (MAX_WAITING + 1) // 2 if header else MAX_WAITING
            wait_until(lambda: answered(crowd) == CROWD - served)
            service.release(lease)
            statuses = [request.status() for request in crowd]
            assert (statuses.count(200), statuses.count(429)) == (served, CROWD - served)
            return seconds

        assert_within(MOST_SECONDS, another_user)
    service.close()


def test_without_a_bound_it_waits_for_them(tmp_path: Path, memcached: Memcached) -> None:
    """The negative control."""
    store = memcached.url("one-user-unbounded")
    threads, _ = recommended()
    service = userlock.LockService.from_url(store)
    with site(tmp_path, store, "none", threads) as port:
        lease = service.acquire("ann")
        crowd = [Request(port, "/users/ann") for _ in range(CROWD)]
        wait_until(lambda: len(service.waiters("ann")) == threads)
        other = Request(port, "/users/bob")
        with pytest.raises(TimeoutError):
            other.status(within=2 * MOST_SECONDS)
        service.release(lease)
        assert {request.status() for request in crowd} == {200}
    service.close()


def test_the_examples_keep_the_recommended_number_of_threads_free() -> None:
    """A user occupies the holder's thread and those of the waiters."""
    threads, waiting = recommended()
    app = yaml.safe_load((ROOT / "examples/appengine/app.yaml").read_text())
    assert f"--threads {threads}" in app["entrypoint"]
    assert int(waiting) + 1 < threads


@pytest.mark.parametrize(
    ("signal_number", "finishes"), [(signal.SIGTERM, True), (signal.SIGKILL, False)]
)
def test_a_thread_of_a_worker_that_is_asked_to_stop_keeps_its_lock_to_the_end(
    tmp_path: Path, memcached: Memcached, signal_number: int, finishes: bool
) -> None:
    """With the control: where the worker is killed, the lock is not given back."""
    store = memcached.url(f"stopped-{finishes}")
    service = userlock.LockService.from_url(store)
    gate = service.acquire("gate")
    with site(tmp_path, store, "", threads=4) as port:
        request = Request(port, "/users/ann/gate")
        wait_until(lambda: service.waiters("gate"))
        holder = service.holder("ann")
        assert holder is not None
        worker = int(holder.process.rpartition("/")[2])
        os.kill(worker, signal_number)
        wait_until(lambda: (service.holder("ann") and not answered([request])) or not finishes)
        service.release(gate)
        if finishes:
            assert request.status() == 200
            wait_until(lambda: not Path(f"/proc/{worker}").exists())
        else:
            with pytest.raises((OSError, IndexError)):
                request.status()
        assert (service.holder("ann") is None) == finishes
