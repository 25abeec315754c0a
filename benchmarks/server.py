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

#: Counters of memcached's `stats` that together count the commands that touch items, by the
#: text and by the meta protocol (`ms` counts as set, `mg` as get, `md` as delete).
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
            "the benchmarks need the real memcached, and there is none on the PATH. "
            "Install it: apt-get install memcached (Debian, Ubuntu), "
            "dnf install memcached (Fedora), brew install memcached (macOS)"
        )


class _Running:
    """What servers of both kinds have."""

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
        """SIGKILL: connections break, everything is forgotten."""
        self._child.kill()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """For a block, SIGSTOP: connections are accepted (by the kernel), nothing is answered."""
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
        """What memcached says about itself. Not counted as operations."""
        with socket.create_connection(self.pair, timeout=5) as connection:
            connection.sendall(b"stats\r\n")
            reply = _receive(connection, until=lambda reply: reply.endswith(b"END\r\n"))
        lines = (line.split() for line in reply.decode().splitlines())
        return {line[1]: line[2] for line in lines if len(line) == 3}

    def operations(self) -> int:
        """How many commands on items it has carried out so far."""
        stats = self.stats()
        return sum(int(stats[counter]) for counter in _COMMANDS)


class Redis(_Running):
    """A running Redis that keeps nothing on disk."""

    def __init__(self, port: int, child: Child) -> None:
        super().__init__(port, child)
        self._asked = 0
        self._connection: socket.socket | None = None

    def info(self, section: str) -> dict[str, str]:
        """What Redis says about itself. Not counted as operations."""
        if self._connection is None:
            self._connection = socket.create_connection(self.pair, timeout=5)
        self._connection.sendall(f"INFO {section}\r\n".encode())
        self._asked += 1
        reply = _receive(self._connection, until=_is_whole)
        lines = (line.partition(":") for line in reply.decode().splitlines())
        return {name: value for name, _, value in lines if value}

    def operations(self) -> int:
        """How many requests it has read so far.

        Requests, and not commands: Redis counts each call inside a script as a command of its
        own, though a script is one request with one reply. Nobody here sends two at once.
        """
        return int(self.info("stats")["total_reads_processed"]) - self._asked

    def close(self) -> None:
        """Give up the connection that is used to ask."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


Server = Memcached | Redis


@contextlib.contextmanager
def memcached(*, core: int | None = None) -> Iterator[Memcached]:
    """A memcached of our own, on a free port, all its threads on `core` if that is given.

    Raises:
        NoMemcached: there is none to be started.
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
    """A Redis of our own, on a free port, all its threads on `core` if that is given."""
    with tempfile.TemporaryDirectory(prefix="userlock-benchmarks-") as folder:
        port = ports.any_free()
        child = Child(
            "redis",
            [
                *(binary, "--port", str(port), "--bind", ports.LOOPBACK),
                *("--save", "", "--dir", folder),
            ],
            answers=lambda: _redis_answers(port),
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
        # Without grace: it keeps nothing, and a memcached that is asked may take a second.
        child.stop(grace_seconds=0)


def _redis_answers(port: int) -> bool:
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
    """Whether a bulk reply of Redis (`$LENGTH`, the text, a line's end) has arrived as a whole."""
    head, found, text = reply.partition(b"\r\n")
    return bool(found) and len(text) >= int(head[1:]) + 2


def _state(thread: Path) -> str:
    """A thread's state as the kernel has it: T when it is stopped."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]
