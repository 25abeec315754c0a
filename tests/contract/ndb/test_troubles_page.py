"""The examples of problems in docs/transactions.md: each prints, in each mode, the page's lines."""

from __future__ import annotations

import os
import re
import sys
from typing import Any
from unittest import mock

import pytest
from google.cloud import ndb

from tests.contract.test_readme import TRANSACTIONS as PAGE
from userlock.ndb import policies
from userlock_emulator.datastore import locks
from userlock_emulator.datastore.server import CONCURRENCY_MODES

SETUP, *EXAMPLES = PAGE.take_all("python")


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


@pytest.mark.usefixtures("_quick_retries")
@pytest.mark.parametrize("mode", CONCURRENCY_MODES)
@pytest.mark.parametrize("example", range(len(EXAMPLES)))
def test_it_prints_what_the_page_says(
    mode: str, example: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = EXAMPLES[example].text
    monkeypatch.setattr(sys, "argv", ["tried.py", mode])
    # ndb knows one class per kind in a process; the page's are its own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    # The page's models are ndb's own. The sample app, if it was imported, has some of these kinds.
    for kind in re.findall(r"^class (\w+)\(ndb\.Model\)", SETUP.text + code, re.MULTILINE):
        monkeypatch.delitem(policies._classes, kind, raising=False)
    if "INDEPENDENT" in code:  # waits for itself, until the emulator gives up
        monkeypatch.setattr(locks, "LOCK_TIMEOUT_SECONDS", 0.2)
    names: dict[str, Any] = {"__name__": "tried"}
    with mock.patch.dict(os.environ):
        try:
            exec(compile(SETUP.text + code, "tried.py", "exec"), names)  # noqa: S102 (our own page)
        finally:
            names["datastore"].stop()
    assert capsys.readouterr().out.splitlines() == said(EXAMPLES[example].below, mode)


def test_the_modes_differ_where_the_page_says_so() -> None:
    """The control: another mode's lines are other lines."""
    tables = [example.below for example in EXAMPLES]
    differ = [len({tuple(said(text, mode)) for mode in CONCURRENCY_MODES}) for text in tables]
    assert differ == [2, 1, 3, 2, 2, 1]
    assert all(said(text, mode) for text in tables for mode in CONCURRENCY_MODES)
