"""The machine: what is worth knowing about it, and its cores."""

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
    """The numbers of the processor cores that this process may use."""
    if sys.platform != "linux":
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0))


def facts(versions: Mapping[str, str]) -> dict[str, object]:
    """What the figures depend on, with these versions of others. No host name, no paths."""
    found: dict[str, object] = {"cores": len(cores())}
    with contextlib.suppress(OSError):
        # What others do on the machine meanwhile: read the spread with it.
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
    """Let a process, with all its threads, run on this core only. Without effect but on Linux."""
    if sys.platform == "linux":
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Run the block on this core only. Without effect but on Linux."""
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
    """Whether processes can be tied to cores here."""
    return _CAN_PIN


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a server runs, as seen from its client, which runs on the first core.

    Left alone, the system puts each of memcached's threads on either core, so
    that one connection is cheap and another dear, whatever goes over them.
    """

    title: str
    core: int | None


def placements() -> list[Placement]:
    """Those that there are here."""
    if not can_pin():
        return [Placement("wherever the system puts them", None)]
    found = [Placement("on the client's core", cores()[0])]
    if len(cores()) > 1:
        found.append(Placement("on another core", cores()[1]))
    return found


@contextlib.contextmanager
def client_placed() -> Iterator[None]:
    """Run the block, a client, where `placements` have it."""
    with pinned(cores()[0]) if can_pin() else contextlib.nullcontext():
        yield
