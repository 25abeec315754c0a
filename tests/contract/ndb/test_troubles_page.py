"""examples/troubles.py prints, in each mode, what docs/transactions.md says."""

from __future__ import annotations

import os
import re
import sys
from unittest import mock

import pytest
from google.cloud import ndb

from tests.documents import ROOT, Page
from userlock.ndb import policies
from userlock_emulator.datastore import locks
from userlock_emulator.datastore.server import CONCURRENCY_MODES

CODE = (ROOT / "examples/troubles.py").read_text()
EXAMPLES = [
    "stale_reads",
    "repeated_runs",
    "writes_outside",
    "queries",
    "nesting",
    "under_the_lock",
]
TABLES = Page("docs/transactions.md").text.split("| mode | prints |\n")[1:]


def said(text: str, mode: str) -> list[str]:
    """Return the lines printed in a mode, as the table below an example says."""
    rows = {
        name: row
        for names, row in re.findall(r"^\| ([a-z ]+) \| (.*?) \|", text, re.MULTILINE)
        for name in (CONCURRENCY_MODES if names == "each" else _modes(names))
    }
    return re.findall(r"`(.*?)`", rows[mode])


def _modes(names: str) -> list[str]:
    """Return the modes that a row of a table is about."""
    if names == "both optimistic":
        return [mode for mode in CONCURRENCY_MODES if mode.startswith("optimistic")]
    return [name.replace(" ", "-") for name in names.split(" and ")]


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("mode", CONCURRENCY_MODES)
@pytest.mark.parametrize(("example", "table"), [*zip(EXAMPLES, TABLES, strict=True)], ids=EXAMPLES)
def test_it_prints_what_the_page_says(
    mode: str,
    example: str,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["troubles.py", example, mode])
    # ndb knows one class per kind in a process; the file's are its own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    # The file's models are ndb's own. The sample app, if it was imported, has some of these kinds.
    for kind in re.findall(r"^class (\w+)\(ndb\.Model\)", CODE, re.MULTILINE):
        monkeypatch.delitem(policies._classes, kind, raising=False)
    if example == "nesting":  # waits for itself, until the emulator gives up
        monkeypatch.setattr(locks, "LOCK_TIMEOUT_SECONDS", 0.2)
    with mock.patch.dict(os.environ):
        exec(compile(CODE, "troubles.py", "exec"), {"__name__": "__main__"})  # noqa: S102 (our own)
    assert capsys.readouterr().out.splitlines() == said(table, mode)


def test_the_modes_differ_where_the_page_says_so() -> None:
    """The control: another mode's lines are other lines."""
    differ = [len({tuple(said(text, mode)) for mode in CONCURRENCY_MODES}) for text in TABLES]
    assert differ == [2, 1, 3, 2, 2, 1]
    assert all(said(text, mode) for text in TABLES for mode in CONCURRENCY_MODES)
