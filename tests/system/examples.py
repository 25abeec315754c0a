"""The files of the deployable examples, as a reader fills them in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"
#: What stands in capitals in the files.
FILLED = {
    "PROJECT": "shop-7",
    "REGION": "europe-west1",
    "HOST": "points.example",
    "CONNECTOR": "lan",
}
#: Notes the arguments of each call.
_GCLOUD = """#!/bin/sh
printf '%s\\n' "$@" END >>"$0.txt"
"""


class Command(NamedTuple):
    """A call of gcloud: its words, and its options."""

    words: str
    options: dict[str, str]


def fill(text: str) -> str:
    for name, value in FILLED.items():
        text = text.replace(name, value)
    return text


def read(path: str) -> Any:
    return yaml.safe_load(fill((EXAMPLES / path).read_text()))


def environment_of(document: Any) -> dict[str, str]:
    """Return the environment that an `app.yaml` or a `service.yaml` gives the site.

    Without that of metrics, which tests/contract/test_monitoring.py receives.
    """
    if "env_variables" in document:
        return dict(document["env_variables"])
    (container,) = document["spec"]["template"]["spec"]["containers"]
    return {
        each["name"]: each.get("value", each["name"])
        for each in container["env"]
        if not each["name"].startswith("OTEL_")
    }


def run_setup(script: str, folder: Path) -> dict[str, Command]:
    """Run a script; return its calls of gcloud, by their words without the last one.

    Raises:
        CalledProcessError: the script failed.
    """
    gcloud = folder / "gcloud"
    gcloud.write_text(_GCLOUD)
    gcloud.chmod(0o755)
    notes = Path(f"{gcloud}.txt")
    notes.unlink(missing_ok=True)
    subprocess.run(
        ["sh"],  # as the page says: any POSIX shell
        input=fill(script),
        env={"PATH": f"{folder}:{os.defpath}"},
        text=True,
        capture_output=True,
        check=True,
        timeout=20,
    )
    found = {}
    for call in notes.read_text().split("END\n")[:-1]:
        given = call.splitlines()
        words = [each for each in given if not each.startswith("--")]
        options = (each.removeprefix("--").partition("=") for each in given if each not in words)
        found[" ".join(words[:-1])] = Command(
            " ".join(words), {name: value for name, _, value in options}
        )
    return found
