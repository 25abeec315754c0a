"""The outbox of an app, found by a name."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import userlock
from userlock import apps
from userlock.apps import find_object
from userlock.outbox import Outbox
from userlock.outbox.outbox import outbox_of_environment

SOURCE = """
from userlock.outbox import Outbox
outbox = Outbox("inline://?threads=0")
other = object()
none = None
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Provide a function that writes a module into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_it_is_imported_from_the_current_directory(
    write: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("an_app_of_a_test", SOURCE)
    monkeypatch.setenv("USERLOCK_OUTBOX", "an_app_of_a_test:outbox")
    found = outbox_of_environment()
    assert isinstance(found, Outbox)
    assert outbox_of_environment() is found


def test_it_is_the_only_one_of_the_app(
    write: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apps, "_made", weakref.WeakSet())  # of this app alone
    monkeypatch.delenv("USERLOCK_OUTBOX", raising=False)
    write("an_app_of_a_test", SOURCE)
    monkeypatch.setenv("USERLOCK_APP", "an_app_of_a_test:app")
    assert outbox_of_environment() is sys.modules["an_app_of_a_test"].outbox
    write("another_app_of_a_test", SOURCE)
    monkeypatch.setenv("USERLOCK_APP", "another_app_of_a_test:app")
    with pytest.raises(userlock.ConfigurationError, match="has 2 objects"):
        outbox_of_environment()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("an_app_of_a_test:nothing", "has no 'nothing'"),
        ("an_app_of_a_test:other", "is a object, no userlock.outbox.Outbox"),
        ("an_app_of_a_test:none", "is a NoneType"),
        ("no_such_app_of_a_test:outbox", "there is no module no_such_app_of_a_test"),
        ("an_app_that_raises:outbox", "cannot be imported: division by zero"),
        *((name, "names no outbox") for name in ("a", "a:", ":a", "a:b:c", "a b:c", "a:b()")),
        *((name, "names no outbox") for name in ("..a:b", "/etc/passwd:a", "a:b\n")),
    ],
)
def test_a_wrong_name_is_a_clear_error(
    write: Callable[[str, str], None], name: str, text: str
) -> None:
    write("an_app_of_a_test", SOURCE)
    write("an_app_that_raises", "1 / 0")
    with pytest.raises(userlock.ConfigurationError, match=text):
        find_object(name, Outbox, "outbox")


def test_the_environment_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USERLOCK_OUTBOX", raising=False)
    with pytest.raises(userlock.ConfigurationError, match="To fix it: USERLOCK_APP=main:app, or"):
        outbox_of_environment()
