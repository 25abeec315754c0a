"""Real servers for tests, each on a free port of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sample_app.stack import ports, services
from sample_app.stack.children import Child


def memcached_binary() -> str:
    """The real memcached's path. Missing it fails in CI and skips on a laptop."""
    binary = services.memcached_binary()
    if binary is None:
        message = "the real memcached is needed: apt-get install memcached"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return binary


class Memcached:
    """A real memcached that can be killed, restarted, stopped and continued."""

    def __init__(self, log_dir: Path) -> None:
        self.port = ports.any_free()
        self._child: Child = services.memcached(
            self.port, log_file=log_dir / "memcached.log", binary=memcached_binary()
        )
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, prefix: str = "test") -> str:
        return f"memcache://{self.address}?prefix={prefix}"

    def start(self) -> None:
        self._child.start()
        self._child.wait_until_it_answers(10)

    def kill(self) -> None:
        """SIGKILL: connections break, everything is forgotten."""
        self._child.kill()

    def restart(self) -> None:
        self.kill()
        self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP: it accepts connections (the kernel does) and answers nothing."""
        os.kill(self._child.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self._child.pid}/task")
        # The signal stops one thread after the other.
        while any(_state(thread) != "T" for thread in threads.iterdir()):
            os.sched_yield()
        try:
            yield
        finally:
            os.kill(self._child.pid, signal.SIGCONT)

    def stop(self) -> None:
        self._child.stop()


def _state(thread: Path) -> str:
    """A thread's state as the kernel has it: T when it is stopped."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]
