"""A real memcached or Redis for one section of the benchmarks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import machine
from sample_app.stack import ports, services
from sample_app.stack.children import Child

#: The counters of memcached's `stats` that together count the commands on items, by the text and
#: the meta protocol (`ms` counts as set, `mg` as get, `md` as delete).
_COMMANDS = (
    "cmd_get",
    "cmd_set",
    "cmd_touch",
    *(f"{verb}_{how}" for verb in ("delete", "incr", "decr") for how in ("hits", "misses")),
)


class NoMemcached(Exception):
    """The real memcached is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "the benchmarks need the real memcached, which is not on the PATH. "
            "Install it: apt-get install memcached (Debian, Ubuntu), "
            "dnf install memcached (Fedora), brew install memcached (macOS)"
        )


class _Running:
    """The common part of both servers."""

    def __init__(self, port: int, child: Child) -> None:
        self.port = port
        self._child = child

    @property
    def address(self) -> str:
        return f"{ports.LOOPBACK}:{self.port}"

    @property
    def pair(self) -> tuple[str, int]:
        return ports.LOOPBACK, self.port

    def kill(self) -> None:
        """Send SIGKILL: connections break, all data is lost."""
        self._child.kill()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server (SIGSTOP) for a block: the kernel accepts connections, but there are no
        replies."""
        pid = self._child.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            threads = Path(f"/proc/{pid}/task")
            # The signal stops one thread after the other.
            while threads.is_dir() and any(_state(thread) != "T" for thread in threads.iterdir()):
                os.sched_yield()
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


class Memcached(_Running):
    """A running memcached."""

    def stats(self) -> dict[str, str]:
        """Return memcached's statistics. Not counted as requests."""
        with socket.create_connection(self.pair, timeout=5) as connection:
            connection.sendall(b"stats\r\n")
            reply = _receive(connection, until=lambda reply: reply.endswith(b"END\r\n"))
        lines = (line.split() for line in reply.decode().splitlines())
        return {line[1]: line[2] for line in lines if len(line) == 3}

    def requests(self) -> int:
        """Return the number of commands on items so far."""
        stats = self.stats()
        return sum(int(stats[counter]) for counter in _COMMANDS)


class Redis(_Running):
    """A running Redis that keeps nothing on disk."""

    def __init__(self, port: int, child: Child) -> None:
        super().__init__(port, child)
        self._asked = 0
        self._connection: socket.socket | None = None

    def info(self, section: str) -> dict[str, str]:
        """Return Redis's statistics. Not counted as requests."""
        if self._connection is None:
            self._connection = socket.create_connection(self.pair, timeout=5)
        self._connection.sendall(f"INFO {section}\r\n".encode())
        self._asked += 1
        reply = _receive(self._connection, until=_is_whole)
        lines = (line.partition(":") for line in reply.decode().splitlines())
        return {name: value for name, _, value in lines if value}

    def requests(self) -> int:
        """Return the number of requests that it has read so far.

        These are requests, not commands. Redis counts each call inside a script as a command,
        though a script is one request with one reply. No client here pipelines requests.
        """
        return int(self.info("stats")["total_reads_processed"]) - self._asked

    def close(self) -> None:
        """Close the connection for statistics."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


Server = Memcached | Redis


@contextlib.contextmanager
def memcached(*, core: int | None = None) -> Iterator[Memcached]:
    """Run a memcached on a free port, with all its threads on `core` if that is given.

    Raises:
        NoMemcached: it is not installed.
    """
    binary = services.memcached_binary()
    if binary is None:
        raise NoMemcached
    with tempfile.TemporaryDirectory(prefix="userlock-benchmarks-") as folder:
        port = ports.any_free()
        child = services.memcached(port, log_file=Path(folder) / "memcached.log", binary=binary)
        with _started(child, core):
            yield Memcached(port, child)


@contextlib.contextmanager
def redis(binary: str, *, core: int | None = None) -> Iterator[Redis]:
    """Run a Redis on a free port, with all its threads on `core` if that is given."""
    with tempfile.TemporaryDirectory(prefix="userlock-benchmarks-") as folder:
        port = ports.any_free()
        child = Child(
            "redis",
            [
                *(binary, "--port", str(port), "--bind", ports.LOOPBACK),
                *("--save", "", "--dir", folder),
            ],
            answers=lambda: redis_answers(port),
            log_file=Path(folder) / "redis.log",
        )
        with _started(child, core):
            running = Redis(port, child)
            try:
                yield running
            finally:
                running.close()


@contextlib.contextmanager
def _started(child: Child, core: int | None) -> Iterator[None]:
    child.start()
    try:
        child.wait_until_it_answers()
        if core is not None:
            machine.pin(child.pid, core)
        yield
    finally:
        # Without grace: it stores nothing, and a graceful end of memcached may take a second.
        child.stop(grace_seconds=0)


def redis_answers(port: int) -> bool:
    """Return whether a Redis server on that port of this machine answers."""
    try:
        with socket.create_connection((ports.LOOPBACK, port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _receive(connection: socket.socket, *, until: Callable[[bytes], bool]) -> bytes:
    reply = b""
    while not until(reply):
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        reply += chunk
    return reply


def _is_whole(reply: bytes) -> bool:
    """Return whether a bulk reply of Redis (`$LENGTH`, the text, a line end) is complete."""
    head, found, text = reply.partition(b"\r\n")
    return bool(found) and len(text) >= int(head[1:]) + 2


def _state(thread: Path) -> str:
    """Return a thread's state in the kernel: T if it is stopped."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]
