"""Facts about the machine, and its cores."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.internal import api_implementation

_CAN_PIN = sys.platform == "linux"


def cores() -> list[int]:
    """Return the numbers of the processor cores that this process may use."""
    if sys.platform != "linux":
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0))


def facts(versions: Mapping[str, str]) -> dict[str, object]:
    """Return facts that affect the figures, with these versions. No host name, no paths."""
    found: dict[str, object] = {"cores": len(cores())}
    with contextlib.suppress(OSError):
        # The load of other processes, to be read together with the spread.
        found["load average"] = round(os.getloadavg()[0], 2)
    found["system"] = f"{platform.system()} {platform.machine()}"
    found["Python"] = platform.python_version()
    found.update(versions)
    for package in ("pymemcache", "google-cloud-ndb"):
        found[package] = importlib.metadata.version(package)
    protobuf = importlib.metadata.version("protobuf")
    found["protobuf"] = f"{protobuf} ({api_implementation.Type()})"
    return found


def pin(pid: int, core: int) -> None:
    """Run a process, with all its threads, on this core only. Linux only in effect."""
    if sys.platform == "linux":
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Run the block on this core only. Linux only in effect."""
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def can_pin() -> bool:
    """Return whether processes can be pinned to cores here."""
    return _CAN_PIN


@dataclass(frozen=True, slots=True)
class Placement:
    """The core of a server, relative to its client, which runs on the first core.

    Without pinning, the system puts each of memcached's threads on either core. One connection is
    then cheap and another expensive, for the same commands.
    """

    title: str
    core: int | None


def placements() -> list[Placement]:
    """Return the placements that are possible here."""
    if not can_pin():
        return [Placement("any core", None)]
    found = [Placement("on the client's core", cores()[0])]
    if len(cores()) > 1:
        found.append(Placement("on another core", cores()[1]))
    return found


@contextlib.contextmanager
def client_placed() -> Iterator[None]:
    """Run the block, a client, on the core that `placements` assume."""
    with pinned(cores()[0]) if can_pin() else contextlib.nullcontext():
        yield
