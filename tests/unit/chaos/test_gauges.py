"""The resource usage of a process is measured: threads, connections, files, memory."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from sample_app.stack.ports import LOOPBACK
from tests.chaos.gauges import gauged


def test_threads() -> None:
    over = threading.Event()
    before = gauged(())["threads"]
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert gauged(())["threads"] == before + 1
    over.set()
    thread.join()
    assert gauged(())["threads"] == before


def test_connections_to_these_ports() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        assert gauged((port,))["connections"] == 0
        with socket.create_connection((LOOPBACK, port)):
            assert gauged((port,))["connections"] == 1
            assert gauged(())["connections"] == 0
        assert gauged((port,))["connections"] == 0


def test_files(tmp_path: Path) -> None:
    before = gauged(())["files"]
    with (tmp_path / "one").open("w"):
        assert gauged(())["files"] == before + 1
    assert gauged(())["files"] == before


def test_objects_and_memory() -> None:
    before = gauged((), objects=True)
    kept = [object() for _ in range(200_000)]
    kept_bytes = bytearray(b"x") * (32 << 20)  # written to, so it is resident
    after = gauged((), objects=True)
    assert after["objects"] - before["objects"] > 150_000
    assert after["resident"] - before["resident"] > 16 << 20
    del kept, kept_bytes
