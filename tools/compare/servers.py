"""Google's emulators in an installed Cloud SDK, each as a child process."""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sample_app.stack import ports
from sample_app.stack.children import Child

_START_SECONDS = 60.0
_PROGRAMS = {
    "datastore": (
        "cloud-datastore-emulator/CloudDatastore.jar",
        "com.google.cloud.datastore.emulator.CloudDatastore",
        ("--testing", "--firestore_in_datastore_mode"),
    ),
    "firestore": (
        "cloud-firestore-emulator/cloud-firestore-emulator.jar",
        "com.google.cloud.datastore.emulator.firestore.CloudFirestore",
        ("--database-mode=datastore-mode",),
    ),
}
NAMES = tuple(_PROGRAMS)


def installed() -> Mapping[str, Path]:
    """Return the program file of each of Google's emulators on this machine, by `NAMES`."""
    gcloud = shutil.which("gcloud")
    if gcloud is None or shutil.which("java") is None:
        return {}
    # bin/gcloud of the SDK, wherever the PATH's one points from.
    platform = Path(gcloud).resolve().parents[1] / "platform"
    files = {name: platform / file for name, (file, _, _) in _PROGRAMS.items()}
    return {name: file for name, file in files.items() if file.exists()}


class Running(NamedTuple):
    """A running emulator."""

    address: str
    pid: int


@contextmanager
def started(name: str, file: Path, folder: Path) -> Iterator[Running]:
    """Run one of Google's emulators with its data in memory.

    Raises:
        ChildDied: it does not start.
    """
    port = ports.any_free()
    _, main, options = _PROGRAMS[name]
    child = Child(
        f"Google's {name} emulator",
        ["java", "-cp", str(file), main, "start", "--host=127.0.0.1", f"--port={port}", *options],
        answers=lambda: _answers(port),
        log_file=folder / f"{name}.log",
        env=os.environ | {"CLOUDSDK_CORE_DISABLE_PROMPTS": "1"},
        cwd=folder,
    )
    child.start()
    try:
        child.wait_until_it_answers(_START_SECONDS)
        yield Running(f"127.0.0.1:{port}", child.pid)
    finally:
        child.stop()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False
