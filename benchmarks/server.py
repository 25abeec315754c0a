"""A real memcached for one section of the benchmarks."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from sample_app.stack import ports, services

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


@dataclass(frozen=True, slots=True)
class Server:
    """A running memcached."""

    port: int
    pid: int

    @property
    def address(self) -> str:
        return f"{ports.LOOPBACK}:{self.port}"

    @property
    def pair(self) -> tuple[str, int]:
        """Host and port."""
        return ports.LOOPBACK, self.port

    def stats(self) -> dict[str, str]:
        """What memcached says about itself. Not counted as operations."""
        with socket.create_connection(self.pair, timeout=5) as connection:
            connection.sendall(b"stats\r\n")
            reply = b""
            while not reply.endswith(b"END\r\n"):
                chunk = connection.recv(65536)
                if not chunk:
                    raise ConnectionError("memcached closed the connection")
                reply += chunk
        lines = (line.split() for line in reply.decode().splitlines())
        return {line[1]: line[2] for line in lines if len(line) == 3}

    def operations(self) -> int:
        """How many commands on items it has carried out so far."""
        stats = self.stats()
        return sum(int(stats[counter]) for counter in _COMMANDS)


@contextlib.contextmanager
def memcached(*, core: int | None = None) -> Iterator[Server]:
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
        child.start()
        try:
            child.wait_until_it_answers()
            if core is not None:
                machine.pin(child.pid, core)
            yield Server(port, child.pid)
        finally:
            child.stop()
