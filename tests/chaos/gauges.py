"""The resource usage of a process: threads, connections, memory, objects."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def gauged(ports: Sequence[int], *, objects: bool = False) -> dict[str, int]:
    """Return the present usage of this process.

    Args:
        ports: the servers' ports, whose connections are counted.
        objects: whether to count the memory blocks of objects, after a garbage collection.
    """
    facts = {
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 (names alone, for speed)
        "connections": _connections(ports),
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE,
    }
    if objects:
        gc.collect()
        facts["objects"] = sys.getallocatedblocks()
    return facts


def _connections(ports: Sequence[int]) -> int:
    """Return the number of this process's sockets that are connected to one of these ports."""
    inodes = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if int(columns[2].rpartition(":")[2], 16) in ports:
            inodes.add(f"socket:[{columns[9]}]")
    return sum(target in inodes for target in map(_target, Path("/proc/self/fd").iterdir()))


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:  # closed meanwhile
        return ""
