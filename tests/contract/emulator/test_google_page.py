"""The commands and options of Google's emulators in emulator/README.md."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sample_app.stack import ports
from tests.contract.emulator.process import EmulatorProcess, refused, run_to_end
from tests.contract.emulator.test_docs import GOOGLES
from userlock_emulator.cli import _parser
from userlock_emulator.google_options import _REFUSED, spelled


def test_the_commands(tmp_path: Path) -> None:
    start, env = GOOGLES.text.splitlines()
    port = ports.any_free()
    program, *arguments = start.replace(":8081", f":{port}").split()
    assert program == "userlock-emulator"
    folder = str(tmp_path / "data")
    arguments = [each.replace(".datastore", folder) for each in arguments]
    with EmulatorProcess(*arguments, port=port) as process:
        assert process.host.endswith(f":{port}")
        found = re.search(r"\(userlock-emulator (.*)\)", env)
        assert found is not None
        printed = run_to_end(*found[1].replace(".datastore", folder).split(), "--shell", "bash")
        script = f"{printed.stdout}\necho $DATASTORE_EMULATOR_HOST $DATASTORE_PROJECT_ID"
        seen = subprocess.check_output(["bash", "-c", script], text=True)
        assert seen == f"{process.host} my-project\n"


def test_each_option_of_googles_is_in_the_help() -> None:
    """Those that are refused say what to do instead."""
    subparsers: Any = _parser()._subparsers
    start: argparse.ArgumentParser = subparsers._group_actions[0].choices["start"]
    text = re.sub(r"\s+", " ", start.format_help())
    for action in start._action_groups[-1]._group_actions:
        if action.help != argparse.SUPPRESS:
            assert all(option in text for option in action.option_strings)
    for option, instead in _REFUSED.items():
        refused(run_to_end("start", option), option, instead)


@pytest.mark.parametrize("option", ["--store_on_disk", "--enable_entity_groups"])
def test_the_spelling_with_underscores(option: str) -> None:
    hyphens = option.replace("_", "-")
    assert list(spelled([f"{option}=True"])) == [hyphens]
    assert list(spelled([f"{option}=false"])) == [hyphens.replace("--", "--no-", 1)]
    assert list(spelled([f"{option}=maybe", "a_b", "--data_dir=a_b"])) == [
        f"{hyphens}=maybe", "a_b", "--data-dir=a_b",
    ]  # fmt: skip
