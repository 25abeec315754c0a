"""The commands and options of Google's emulators in docs/emulator.md."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sample_app.stack import ports
from tests.contract.emulator.process import EmulatorProcess, run_to_end
from tests.contract.emulator.test_docs import GOOGLES, PAGE
from userlock_emulator.cli import _parser
from userlock_emulator.google_options import spelled


def section(title: str) -> str:
    """Return the text below a heading."""
    return re.split(r"^#+ ", PAGE.text.partition(f"# {title}\n")[2], flags=re.M)[0]


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


def start_parser() -> argparse.ArgumentParser:
    subparsers: Any = _parser()._subparsers
    parser: argparse.ArgumentParser = subparsers._group_actions[0].choices["start"]
    return parser


def test_the_table_has_the_options_of_googles() -> None:
    """The options that only Google's emulators have come from one module."""
    text = section("Google's options")
    rows = (row.split("|")[1] for row in text.splitlines() if row.startswith("| `"))
    options = {option for row in rows for option in re.findall(r"`(--?[a-z-]+)", row)}
    assert len(options) > 25
    assert options <= set(start_parser()._option_string_actions)
    ours = {action.dest for action in start_parser()._action_groups[1]._group_actions}
    for action in start_parser()._actions:
        if action.dest not in ours:
            for option in action.option_strings:
                assert option.startswith("--no-") or f"`{option}" in text, option


@pytest.mark.parametrize("option", ["--store_on_disk", "--enable_entity_groups"])
def test_the_spelling_with_underscores(option: str) -> None:
    hyphens = option.replace("_", "-")
    assert list(spelled([f"{option}=True"])) == [hyphens]
    assert list(spelled([f"{option}=false"])) == [hyphens.replace("--", "--no-", 1)]
    assert list(spelled([f"{option}=maybe", "a_b", "--data_dir=a_b"])) == [
        f"{hyphens}=maybe", "a_b", "--data-dir=a_b",
    ]  # fmt: skip
