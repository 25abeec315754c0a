"""The Datastore emulator for a section, in a process of its own, and round trips to it."""

from __future__ import annotations

import contextlib
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sample_app.stack import ports, services


@contextlib.contextmanager
def datastore(folder: Path) -> Iterator[None]:
    """Run an emulator, which the clients that are made in the block reach."""
    port = ports.any_free()
    child = services.emulator(port, concurrency_mode=None, log_file=folder / "emulator.log")
    child.start()
    try:
        child.wait_until_it_answers()
        before = dict(os.environ)
        os.environ["DATASTORE_EMULATOR_HOST"] = f"{ports.LOOPBACK}:{port}"
        os.environ.setdefault("GOOGLE_CLOUD_PROJECT", "bench")
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        child.stop(grace_seconds=10)


def reset() -> None:
    """Delete all data of the emulator."""
    url = f"http://{os.environ['DATASTORE_EMULATOR_HOST']}/reset"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST")):
        pass


def round_trips(client: Any, action: Callable[[], object]) -> float:
    """Return how many requests an action sends to Datastore."""
    counted = _Counted(client.stub)
    client.stub = counted
    try:
        action()
    finally:
        client.stub = counted.stub
    return counted.calls


class _Counted:
    """A stub that counts its calls."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self.stub, name)
