"""The outbox of an app, for other processes. Wrong names: `tests/unit/cli/test_apps.py`."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import userlock
from userlock import apps
from userlock.outbox.outbox import outbox_of_environment

SOURCE = """
from userlock.outbox import Outbox
outbox = Outbox("inline://?threads=0")
"""


@pytest.fixture(autouse=True)
def _apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Change to a directory with two apps; no other outboxes are known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.setattr(apps, "_made", weakref.WeakSet())
    for name in ("USERLOCK_OUTBOX", "USERLOCK_APP"):
        monkeypatch.delenv(name, raising=False)
    for name in ("an_app", "another_app"):
        (tmp_path / f"{name}.py").write_text(SOURCE)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_environment_names_it_or_its_app(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(userlock.ConfigurationError, match="To fix it: USERLOCK_APP=main:app, or"):
        outbox_of_environment()
    monkeypatch.setenv("USERLOCK_APP", "an_app:app")
    first = outbox_of_environment()
    assert first is sys.modules["an_app"].outbox
    monkeypatch.setenv("USERLOCK_OUTBOX", "another_app:outbox")
    assert outbox_of_environment() is sys.modules["another_app"].outbox is not first
    monkeypatch.delenv("USERLOCK_OUTBOX")
    with pytest.raises(userlock.ConfigurationError, match="has 2 objects"):
        outbox_of_environment()
