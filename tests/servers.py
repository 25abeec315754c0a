"""Real servers for tests, each on a free port of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from sample_app.stack import ports, services
from sample_app.stack.children import Child
from userlock.stores.redis import RedisStore
from userlock.stores.urls import open_store

#: The time by which memcached may keep a record longer than its lease, in seconds: the uncertainty
#: of its clock (2.1), the fraction of a second, the lateness of the clock at the end of the lease,
#: and a margin for a busy machine.
MEMCACHED_LATE_SECONDS = 4.6


def real(program: str, package: str) -> str:
    """Return a real server's path. If it is missing, fail in CI and skip on a laptop."""
    binary = shutil.which(program)
    if binary is None:
        lacking(f"the real {program} is needed: apt-get install {package}")
    return binary


def redis_store(url: str) -> RedisStore:
    """Return the store that a URL of one Redis names."""
    store = open_store(url)
    assert isinstance(store, RedisStore)
    return store


def lacking(message: str) -> NoReturn:
    """Fail or skip because a requirement is not installed."""
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


class _Server:
    """A real server that can be killed, restarted, stopped and continued."""

    port: int
    _child: Child
    _paused = False

    @property
    def running(self) -> bool:
        """Return whether it runs and is not stopped."""
        return self._child.running and not self._paused

    @property
    def address(self) -> str:
        return f"{ports.LOOPBACK}:{self.port}"

    def start(self) -> None:
        self._child.start()
        self._child.wait_until_it_answers(10)

    def kill(self) -> None:
        """Send SIGKILL: connections break, all data is lost."""
        self._child.kill()

    def restart(self) -> None:
        self.kill()
        self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop it (SIGSTOP): the kernel accepts connections, but there are no replies."""
        os.kill(self._child.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self._child.pid}/task")
        # The signal stops one thread after the other.
        while any(_state(thread) != "T" for thread in threads.iterdir()):
            os.sched_yield()
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            os.kill(self._child.pid, signal.SIGCONT)

    def stop(self) -> None:
        # Without grace: it stores nothing, and a graceful end of memcached may take a second.
        self._child.stop(grace_seconds=0)


class Memcached(_Server):
    """A real memcached.

    Args:
        log_dir: the folder of its log.
        options: additional command line options.
    """

    def __init__(self, log_dir: Path, *options: str) -> None:
        self.port = ports.any_free()
        self._child = services.memcached(
            self.port, log_file=log_dir / "memcached.log", binary=real("memcached", "memcached")
        )
        self._child.command += options
        self._before_start(self._child.command)
        self.start()

    def _before_start(self, command: list[str]) -> None:
        """Change the command line."""

    def url(self, prefix: str = "test") -> str:
        return f"memcache://{self.address}?prefix={prefix}"

    @contextmanager
    def clock_comes_last(self) -> Iterator[None]:
        """Make its first thread, which sets its clock, yield to all others."""
        pid = self._child.pid
        threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
        cores = os.sched_getaffinity(pid)
        for thread in threads:
            os.sched_setaffinity(thread, {min(cores)})
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        try:
            yield
        finally:
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
            for thread in threads:
                os.sched_setaffinity(thread, cores)


class RedisServer(_Server):
    """A real Redis that keeps nothing on disk.

    Args:
        folder: the folder of its files.
        options: additional command line options.
        binary: the server, if it is another one than the Redis that is installed.
    """

    def __init__(self, folder: Path, *options: str, binary: str = "") -> None:
        self.port = ports.any_free()
        self._child = Child(
            "redis",
            [
                *(binary or real("redis-server", "redis-server"), "--port", str(self.port)),
                *("--bind", ports.LOOPBACK, "--save", "", "--dir", str(folder)),
                *options,
            ],
            answers=self._answers,
            log_file=folder / "redis.log",
        )
        self.start()

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def _answers(self) -> bool:
        try:
            with socket.create_connection((ports.LOOPBACK, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def _state(thread: Path) -> str:
    """Return a thread's state in the kernel: T if it is stopped."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]
