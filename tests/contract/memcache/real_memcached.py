"""The real memcached, the reference."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator

from tests.servers import real

HOST = "127.0.0.1"

_ATTEMPTS = 5
_ANSWER_SECONDS = 10.0
_PAUSE_SECONDS = 0.02

# Without its background threads memcached moves items between its queues at
# deterministic moments only; nothing else in its answers changes.
_ARGUMENTS = ("-u", "nobody", "-l", HOST, "-U", "0", "-o", "no_lru_maintainer,no_lru_crawler")


@contextlib.contextmanager
def running() -> Iterator[int]:
    """Yield the port of a running memcached. Without the program: skip, in CI fail."""
    program = real("memcached", "memcached")
    process, port = _launch(program)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def _launch(program: str) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(_ATTEMPTS):
        port = _free_port()
        process = subprocess.Popen([program, *_ARGUMENTS, "-p", str(port)])
        if _answers(process, port):
            return process, port
    raise RuntimeError(f"{program} did not start")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Return whether memcached serves; False if it ended, for example by a taken port."""
    for _ in range(int(_ANSWER_SECONDS / _PAUSE_SECONDS)):
        with contextlib.suppress(OSError), socket.create_connection((HOST, port)) as probe:
            probe.sendall(b"version\r\n")
            if probe.recv(64).startswith(b"VERSION"):
                return process.poll() is None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PAUSE_SECONDS)
            return False
    process.kill()
    process.wait()
    return False
